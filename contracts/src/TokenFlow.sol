// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";

/// @title How tokens come in, and where burned ones go
library TokenFlow {
    using SafeERC20 for IERC20;

    /// @notice Nobody's address. Not every token can be burned; every token can be sent here.
    address internal constant BURNED = 0x000000000000000000000000000000000000dEaD;

    /// @notice The token took a fee on the way: the contract would hold less than it owes.
    error TokenFee(uint256 expected, uint256 received);

    /// @notice Take exactly this much from the caller, or revert. Never from anybody else.
    function take(IERC20 token, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenFee(amount, received);
    }

    /// @notice Use the sender's permit. One that somebody else has sent first is spent and its approval stands, so failing is no harm:
    /// what counts is whether the tokens can be taken afterwards.
    function permit(IERC20 token, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) internal {
        try IERC20Permit(address(token)).permit(msg.sender, address(this), amount, deadline, v, r, s) {} catch {}
    }
}
