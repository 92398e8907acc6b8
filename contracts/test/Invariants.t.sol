// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Test} from "forge-std/Test.sol";

import {Court} from "../src/Court.sol";
import {LogAnchor} from "../src/LogAnchor.sol";
import {RewardPool} from "../src/RewardPool.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {TestToken} from "../src/TestToken.sol";
import {IRewardPool} from "../src/interfaces/IRewardPool.sol";
import {IStakeVault} from "../src/interfaces/IStakeVault.sol";
import {Handler} from "./Handler.sol";

/// @title What holds after every step of any sequence. One campaign checks all of it, so each property sees every state.
contract InvariantsTest is Test {
    Handler internal handler;
    TestToken internal token;
    StakeVault internal vault;
    Court internal court;
    RewardPool internal pool;
    LogAnchor internal logAnchor;

    function setUp() public {
        handler = Handler(deployCode("Handler.sol"));
        handler.setUp();
        (address token_, address vault_, address court_, address pool_, address anchor_) = handler.parts();
        (token, vault, court) = (TestToken(token_), StakeVault(vault_), Court(court_));
        (pool, logAnchor) = (RewardPool(pool_), LogAnchor(anchor_));
        targetContract(address(handler));
        bytes4[] memory untried = new bytes4[](1);
        untried[0] = Handler.setUp.selector;
        excludeSelector(FuzzSelector(address(handler), untried));
    }

    function invariant_booksHold() public view {
        checkStakesAreTheVaultsBalance();
        checkValueIsConserved();
        checkPoolIsSolvent();
        checkJudgesNeverGain();
        checkOnlyConflictingHeadsFreeze();
        // Slashes without quorum, proof or closed window, double claims, unbonding that outran: the action that saw it says so.
        assertEq(handler.broken(), "");
    }

    function checkStakesAreTheVaultsBalance() internal view {
        uint256 sum = 8 * 1000;
        for (uint256 i = 0; i < handler.WORKERS(); i++) {
            address node = handler.workerAt(i);
            IStakeVault.Position memory position = vault.positionOf(node);
            uint256 unbonding;
            IStakeVault.Unbonding[] memory parts = vault.unbondingsOf(node);
            for (uint256 j = 0; j < parts.length; j++) {
                unbonding += parts[j].amount;
            }
            assertEq(position.unbonding, unbonding, "unbonding parts");
            sum += uint256(position.stake) + position.unbonding + position.escrow;
        }
        assertEq(vault.total(), sum, "sum of positions");
        assertEq(token.balanceOf(address(vault)), sum, "vault balance");
    }

    function checkValueIsConserved() internal view {
        uint256 inside = token.balanceOf(address(vault)) + token.balanceOf(address(court)) + pool.held();
        assertEq(inside + handler.outside(), token.totalSupply(), "value was made or lost");
        assertEq(court.bonds() + court.bounties(), token.balanceOf(address(court)), "bonds and bounties");
        assertEq(pool.held(), token.balanceOf(address(pool)), "pool balance");
        uint256 escrow;
        for (uint256 i = 0; i < handler.submissionCount(); i++) {
            escrow += vault.escrowOf(handler.submissions(i)).amount;
        }
        uint256 positions;
        for (uint256 i = 0; i < handler.WORKERS(); i++) {
            positions += vault.positionOf(handler.workerAt(i)).escrow;
        }
        assertEq(escrow, positions, "escrow");
    }

    function checkPoolIsSolvent() internal view {
        bytes32 run = keccak256("run-1");
        IRewardPool.Pool memory books = pool.poolOf(run);
        assertLe(pool.validPromised(run), uint256(books.held) + books.claimed, "promised more than held");
        assertLe(books.claimed, books.promised, "a void root was paid");
        assertEq(books.claimed, handler.paid(), "claims and payments differ");
        assertEq(books.held, pool.held(), "one run, one pool");
    }

    function checkJudgesNeverGain() internal view {
        assertGe(handler.judgesHold(), handler.judgesHeld(), "a judge lost");
        assertLe(handler.judgesHold(), handler.judgesHeld() + handler.judgesFunded(), "a judge gained");
    }

    function checkOnlyConflictingHeadsFreeze() internal view {
        assertEq(logAnchor.frozenAt(keccak256("run-1")) != 0, handler.isFrozen(), "frozen");
    }
}
