// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title A token for devnets: all of it belongs to the deployer at first
contract TestToken is ERC20, ERC20Permit {
    constructor(string memory name_, string memory symbol_, uint256 supply) ERC20(name_, symbol_) ERC20Permit(name_) {
        _mint(msg.sender, supply);
    }

    /// @notice One unit is one nano of the log.
    function decimals() public pure override returns (uint8) {
        return 9;
    }
}
