// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRewardPool} from "../src/interfaces/IRewardPool.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {PoolScene} from "./PoolScene.sol";

contract ChallengeTest is PoolScene {
    bytes32 internal headRoot;

    function setUp() public override {
        super.setUp();
        stakeJudges();
        anchorMore();
    }

    /// @dev A newer head, which every staked judge is older than.
    function anchorMore() internal {
        tree.add("more");
        anchorLog();
        headRoot = tree.rootOf(tree.size());
    }

    function challenge(uint64 epoch, bytes32 root, address node) internal {
        vm.prank(node);
        pool.challenge(RUN, epoch, root, headRoot, node);
    }

    function refuse(bytes4 refusal, uint64 epoch, bytes32 root, address node) internal {
        vm.prank(node);
        vm.expectPartialRevert(refusal);
        pool.challenge(RUN, epoch, root, headRoot, node);
    }

    /// @dev A quorum, without the last `missing` of it.
    function void(uint64 epoch, bytes32 root, uint256 missing) internal {
        for (uint256 i = 0; i + missing < terms().quorum; i++) {
            challenge(epoch, root, judgeAt(i));
        }
    }

    function test_quorumOfOwnersVoidsARootBeforeItMatures() public {
        post(1, 300, 100);
        bytes32 root = rootOf(300, 100);
        void(1, root, 1);
        assertEq(pool.promiseOf(RUN, 1).root, root);
        assertEq(pool.votesAgainst(pool.statementOf(RUN, tree.size(), root)), 2);
        vm.expectEmit();
        emit IRewardPool.Challenged(RUN, 1, root, judgeAt(2), judgeAt(2), 3);
        vm.expectEmit();
        emit IRewardPool.RootVoided(RUN, 1, root, tree.size(), 1);
        challenge(1, root, judgeAt(2));
        assertEq(pool.promiseOf(RUN, 1).maturesAt, 0);
        assertEq(pool.poolOf(RUN).promised, 0);
        assertEq(pool.poolOf(RUN).epoch, 0);
        skip(30 days);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.EpochUnknown.selector, RUN, 1));
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
        assertEq(pool.maturedOf(RUN), 0);
    }

    function test_whatMaturedBeforeStaysAndWhatCameAfterIsVoidToo() public {
        post(1, 300, 100);
        skip(1 days);
        post(2, 400, 100);
        skip(1 hours);
        post(3, 500, 100);
        void(2, rootOf(400, 100), 0);
        assertEq(pool.poolOf(RUN).promised, 400);
        assertEq(pool.maturedOf(RUN), 400);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 300);
        skip(30 days);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.EpochUnknown.selector, RUN, 3));
        pool.claim(RUN, 3, ann, 500, proofBeside(bob, 100));
        // Less than the void ones promised, from a number that was used before.
        post(2, 320, 100);
        skip(2 days);
        assertEq(pool.claim(RUN, 2, ann, 320, proofBeside(bob, 100)), 20);
    }

    function test_sameRootForTheSameHeadIsRefusedAtOnceAndForANewerHeadIsANewStatement() public {
        post(1, 300, 100);
        bytes32 root = rootOf(300, 100);
        void(1, root, 0);
        skip(1 hours);
        uint64 size = tree.size();
        vm.prank(operator);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RootVoid.selector, 1, size, root));
        pool.postRoot(RUN, 1, size, root, 400);
        anchorMore();
        post(1, 300, 100);
        void(1, root, 1);
        assertEq(pool.promiseOf(RUN, 1).root, root);
    }

    function test_eachVoidDoublesTheDelayUpToTheUnbondingDelay() public {
        for (uint256 i = 0; i < 20; i++) {
            post(1, 300, 100);
            uint256 delay = i < 4 ? 1 days * 2 ** i : DELAY;
            assertEq(pool.promiseOf(RUN, 1).maturesAt, block.timestamp + delay);
            void(1, rootOf(300, 100), 0);
            skip(1 hours);
            anchorMore();
        }
        assertEq(pool.poolOf(RUN).promised, 0);
        post(1, 300, 100);
        assertEq(pool.promiseOf(RUN, 1).voids, 16);
    }

    function test_longerDelayHoldsForThoseAfterItUntilOneHasMatured() public {
        post(1, 300, 100);
        void(1, rootOf(300, 100), 0);
        anchorMore();
        skip(1 hours);
        post(1, 310, 100);
        skip(1 hours);
        post(2, 320, 100);
        assertEq(pool.promiseOf(RUN, 2).maturesAt, block.timestamp + 2 days);
        skip(2 days);
        post(3, 330, 100);
        assertEq(pool.promiseOf(RUN, 3).maturesAt, block.timestamp + 1 days);
    }

    function test_onlyAStakedNodeOrItsOwnerBoundBeforeTheHeadCounts() public {
        post(1, 300, 100);
        bytes32 root = rootOf(300, 100);
        refuse(ICourt.JudgeStakeTooSmall.selector, 1, root, ann);
        vm.expectRevert(
            abi.encodeWithSelector(IRewardPool.NotChallenger.selector, address(this), judgeAt(0), judgeAt(0))
        );
        pool.challenge(RUN, 1, root, headRoot, judgeAt(0));
        skip(1);
        stake(ann, 1000);
        refuse(ICourt.JudgeTooNew.selector, 1, root, ann);
        challenge(1, root, judgeAt(0));
        refuse(ICourt.OwnerTwice.selector, 1, root, judgeAt(0));
        vm.prank(judgeAt(1));
        vault.unbond(judgeAt(1), 1000);
        challenge(1, root, judgeAt(1)); // what is unbonding can still be lost
    }

    function test_ownerOfTwoNodesCountsOnceAndMaySpeakForEither() public {
        address owner = makeAddr("owner");
        give(owner, 2000);
        vm.prank(owner);
        token.approve(address(vault), 2000);
        for (uint256 key = 0x51; key < 0x53; key++) {
            bytes32 hash = keccak256(abi.encode(vault.CONSENT_TYPEHASH(), owner, vm.addr(key), 0));
            bytes memory consent = sign(key, digestOf(address(vault), hash));
            vm.startPrank(owner);
            vault.bind(vm.addr(key), consent);
            vault.deposit(vm.addr(key), 1000);
            vm.stopPrank();
        }
        anchorMore();
        post(1, 300, 100);
        vm.prank(owner);
        pool.challenge(RUN, 1, rootOf(300, 100), headRoot, vm.addr(0x51));
        assertTrue(pool.hasChallenged(pool.statementOf(RUN, tree.size(), rootOf(300, 100)), owner));
        refuse(ICourt.OwnerTwice.selector, 1, rootOf(300, 100), vm.addr(0x52));
    }

    function test_challengeNamesTheRootAndTheLogAndComesInTime() public {
        refuse(IRewardPool.EpochUnknown.selector, 1, "root", judgeAt(0));
        refuse(IRewardPool.EpochUnknown.selector, 0, "root", judgeAt(0));
        post(1, 300, 100);
        refuse(IRewardPool.RootDiffers.selector, 1, "root", judgeAt(0));
        bytes32 right = headRoot;
        headRoot = "another log";
        refuse(ILogAnchor.HeadUnknown.selector, 1, rootOf(300, 100), judgeAt(0));
        headRoot = right;
        skip(1 days - 1);
        challenge(1, rootOf(300, 100), judgeAt(0));
        skip(1);
        refuse(IRewardPool.ChallengeTooLate.selector, 1, rootOf(300, 100), judgeAt(1));
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
    }

    function test_fundersLeaveARunInWhichNoRootMaturesForLong() public {
        post(1, 300, 100);
        uint256 since = block.timestamp + 1 days;
        skip(1 days);
        uint64 count;
        for (; block.timestamp < since + 4 * DELAY; skip(5 days)) {
            anchorMore();
            post(2, 400 + count, 100);
            void(2, rootOf(400 + count++, 100), 0);
        }
        assertEq(count, 8);
        assertTrue(pool.isAbandoned(RUN));
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 9_600);
        assertEq(pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300)), 100);
    }

    function test_voidAfterAFreezeTakesNothingThatMatured() public {
        post(1, 300, 100);
        skip(1 days);
        post(2, 400, 100);
        skip(1 hours);
        freezeLog();
        void(2, rootOf(400, 100), 0);
        assertEq(pool.validPromised(RUN), 400);
        assertEq(pool.maturedOf(RUN), 400);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 300);
    }

    function test_payoutDelayFitsIntoTheUnbondingDelay() public {
        IRunRegistry.Terms memory long = terms();
        long.payoutDelay = uint32(DELAY) + 1;
        vm.prank(operator);
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.WindowsOverDelay.selector, DELAY + 1, DELAY));
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, long);
    }

    /// @dev Whatever is posted and challenged: the pool holds what it promises, a void root pays nothing, and a matured one is never void.
    function testFuzz_voidRootsPayNothingAndMaturedOnesStay(uint16[6] memory more, uint8[6] memory votes) public {
        uint256 annTotal;
        uint256 matured;
        for (uint256 i = 0; i < 6; i++) {
            anchorMore();
            uint64 epoch = pool.poolOf(RUN).epoch + 1;
            uint256 next = annTotal + more[i] % 1_500;
            post(epoch, next, 100);
            bool isVoid = votes[i] % 4 == 3;
            for (uint256 j = 0; j < votes[i] % 4; j++) {
                challenge(epoch, rootOf(next, 100), judgeAt((votes[i] / 4 + j) % JUDGES));
            }
            if (!isVoid) annTotal = next;
            assertEq(pool.poolOf(RUN).promised, pool.poolOf(RUN).epoch == 0 ? 0 : annTotal + 100);
            assertGe(pool.maturedOf(RUN), matured);
            matured = pool.maturedOf(RUN);
            assertLe(pool.poolOf(RUN).promised, uint256(pool.poolOf(RUN).held) + pool.poolOf(RUN).claimed);
            skip(1 hours + uint256(votes[i]) * 1 hours);
        }
        skip(DELAY);
        uint64 last = pool.poolOf(RUN).epoch;
        if (last == 0) return;
        pool.claim(RUN, last, ann, annTotal, proofBeside(bob, 100));
        assertEq(token.balanceOf(ann), annTotal);
        assertEq(pool.poolOf(RUN).promised, annTotal + 100);
    }
}
