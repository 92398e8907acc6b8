// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "./interfaces/ICourt.sol";
import {IRunRegistry} from "./interfaces/IRunRegistry.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";

/// @title Whose word counts about a run: a node with something to lose, bound before the head that its word rests on
library Judges {
    /// @dev Its owner, who speaks once in each case.
    function requireFit(IStakeVault vault, address node, IRunRegistry.Terms memory terms, uint48 anchoredAt)
        internal
        view
        returns (address owner)
    {
        IStakeVault.Position memory position = vault.positionOf(node);
        // What is unbonding can still be lost; asking it back must not undo a verdict.
        uint256 stake = uint256(position.stake) + position.unbonding;
        if (stake < terms.stakeMin) revert ICourt.JudgeStakeTooSmall(node, stake, terms.stakeMin);
        if (uint256(position.boundAt) + terms.judgeAge > anchoredAt) {
            revert ICourt.JudgeTooNew(node, position.boundAt, anchoredAt);
        }
        return position.owner;
    }
}
