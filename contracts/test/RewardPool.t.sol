// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IRewardPool} from "../src/interfaces/IRewardPool.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {PoolScene} from "./PoolScene.sol";

contract RewardPoolTest is PoolScene {
    function test_fundingIsCounted() public {
        assertEq(pool.fundedBy(RUN, funder), 10_000);
        assertEq(pool.poolOf(RUN).held, 10_000);
        assertEq(pool.held(), 10_000);
        assertEq(pool.token(), address(token));
        vm.expectRevert(IRewardPool.AmountMissing.selector);
        pool.fund(RUN, 0);
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.RunUnknown.selector, bytes32("none")));
        pool.fund("none", 1);
    }

    function test_fundingByPermit() public {
        give(ann, 100);
        bytes32 kind = keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
        bytes32 hash = keccak256(abi.encode(kind, ann, address(pool), 100, 0, block.timestamp));
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", token.DOMAIN_SEPARATOR(), hash));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(ANN_KEY, digest);
        vm.prank(ann);
        pool.fundWithPermit(RUN, 100, block.timestamp, v, r, s);
        assertEq(pool.fundedBy(RUN, ann), 100);
    }

    function test_onlyTheCourtForfeitsAndOnlyWhatArrived() public {
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.NotCourt.selector, address(this), address(court)));
        pool.receiveForfeit(RUN, 1);
        vm.prank(address(court));
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.Insolvent.selector, 10_001, 10_000));
        pool.receiveForfeit(RUN, 1);
    }

    function test_promiseIsBoundByRoleEpochHeadTimeBudgetAndMoney() public {
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.NotOperator.selector, address(this), operator));
        pool.postRoot(RUN, 1, 1, "root", 1);
        refusePost(IRewardPool.WrongEpoch.selector, 2, 1, 1);
        refusePost(IRewardPool.HeadNotNewest.selector, 1, 2, 1);
        refusePost(IRewardPool.OverBudget.selector, 1, 1, 10_001);
        rewind(1);
        refusePost(IRewardPool.EpochTooSoon.selector, 1, 1, 1);
        skip(1 hours + 1);
        refusePost(IRewardPool.Insolvent.selector, 1, 1, 10_001);
        post(1, 300, 100);
        refusePost(IRewardPool.EpochTooSoon.selector, 2, 1, 400);
        skip(1 hours);
        refusePost(IRewardPool.TotalFell.selector, 2, 1, 399);
        tree.add("more");
        anchorLog();
        post(2, 300, 100);
        skip(1 hours);
        refusePost(IRewardPool.HeadNotNewest.selector, 3, 1, 400);
    }

    function test_pausedRunPromisesNothing() public {
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Paused);
        refusePost(IRunRegistry.RunNotActive.selector, 1, 1, 1);
    }

    function test_claimPaysTheDifferenceOnce() public {
        post(1, 300, 100);
        skip(1 days);
        vm.expectEmit();
        emit IRewardPool.Claimed(RUN, ann, 300, 300);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 300);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 0);
        assertEq(token.balanceOf(ann), 300);
        post(2, 500, 100);
        skip(1 days);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 0);
        assertEq(pool.claim(RUN, 2, ann, 500, proofBeside(bob, 100)), 200);
        assertEq(pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300)), 100); // an old root is as good
        assertEq(pool.claimedBy(RUN, ann), 500);
        assertEq(pool.poolOf(RUN).claimed, 600);
        assertEq(pool.poolOf(RUN).held, 9_400);
    }

    function test_claimNeedsItsLeafAndItsTime() public {
        vm.expectPartialRevert(IRewardPool.EpochUnknown.selector);
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
        post(1, 300, 100);
        vm.expectPartialRevert(IRewardPool.NotMatured.selector);
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
        skip(1 days);
        vm.expectPartialRevert(IRewardPool.BadProof.selector);
        pool.claim(RUN, 1, ann, 301, proofBeside(bob, 100));
        vm.expectPartialRevert(IRewardPool.BadProof.selector);
        pool.claim(RUN, 1, address(this), 300, proofBeside(bob, 100));
    }

    function test_rootOverMoreThanItsTotalPaysNoMoreThanThat() public {
        vm.prank(operator);
        pool.postRoot(RUN, 1, 1, rootOf(300, 100), 350);
        skip(1 days);
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.PromiseExceeded.selector, 400, 350));
        pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300));
    }

    function test_shorterDelayDoesNotOvertake() public {
        IRunRegistry.Terms memory quick = terms();
        quick.payoutDelay = 0;
        vm.prank(operator);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, quick);
        skip(DELAY - 1);
        post(1, 300, 100);
        uint48 first = pool.promiseOf(RUN, 1).maturesAt;
        skip(1 hours);
        post(2, 400, 100);
        assertEq(pool.promiseOf(RUN, 2).maturesAt, first);
    }

    function test_freezeVoidsWhatHasNotMatured() public {
        post(1, 300, 100);
        skip(1 days);
        post(2, 400, 100);
        skip(1 hours);
        freezeLog();
        skip(30 days);
        assertEq(pool.validPromised(RUN), 400);
        vm.expectPartialRevert(IRewardPool.PromiseVoid.selector);
        pool.claim(RUN, 2, ann, 400, proofBeside(bob, 100));
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 300);
        refusePost(IRewardPool.RunIsOver.selector, 3, 1, 500);
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 9_600);
        assertEq(pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300)), 100);
        assertEq(token.balanceOf(address(pool)), 0);
    }

    function test_fundersTakeBackWhatIsNotPromised() public {
        fund(ann, 5_000);
        post(1, 0, 1_000);
        vm.prank(funder);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RunNotOver.selector, RUN));
        pool.reclaim(RUN);
        close();
        skip(DELAY);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RunIsOver.selector, RUN));
        pool.fund(RUN, 1);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.NothingFunded.selector, address(this)));
        pool.reclaim(RUN);
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 9_333);
        vm.prank(ann);
        assertEq(pool.reclaim(RUN), 4_667);
        vm.prank(ann);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.NothingFunded.selector, ann));
        pool.reclaim(RUN);
        assertEq(pool.claim(RUN, 1, bob, 1_000, proofBeside(ann, 0)), 1_000);
        assertEq(token.balanceOf(address(pool)), 0);
    }

    function test_whatSlashesLeftInAPoolWithoutFundersIsBurned() public {
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RunNotOver.selector, RUN));
        pool.burnRest(RUN);
        close();
        skip(DELAY);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.FundersLeft.selector, 10_000));
        pool.burnRest(RUN);
        vm.prank(funder);
        pool.reclaim(RUN);
        vm.expectRevert(IRewardPool.AmountMissing.selector);
        pool.burnRest(RUN);
        give(address(pool), 70);
        vm.prank(address(court));
        pool.receiveForfeit(RUN, 70);
        assertEq(pool.burnRest(RUN), 70);
        assertEq(token.balanceOf(BURNED), 70);
    }

    function test_noSlashPaysAFunder() public {
        address judge = makeAddr("a judge");
        fund(judge, 1);
        give(address(pool), 700);
        vm.prank(address(court));
        pool.receiveForfeit(RUN, 700);
        post(1, 300, 100);
        close();
        skip(DELAY);
        vm.prank(judge);
        assertEq(pool.reclaim(RUN), 0); // of 9,601 that funders have left, in whole units
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 9_601);
        assertEq(pool.burnRest(RUN), 700);
        pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100));
        pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300));
        assertEq(token.balanceOf(address(pool)), 0);
    }

    function test_whatSlashesBroughtIsPromisedLastAndFundersGetNothingThen() public {
        give(address(pool), 700);
        vm.prank(address(court));
        pool.receiveForfeit(RUN, 700);
        skip(1 hours);
        post(1, 10_200, 100);
        close();
        skip(DELAY);
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 0);
        assertEq(pool.burnRest(RUN), 400);
        assertEq(pool.claim(RUN, 1, ann, 10_200, proofBeside(bob, 100)), 10_200);
    }

    function test_fundersOfAnAbandonedRunTakeTheirMoneyBack() public {
        post(1, 300, 100);
        skip(1 days + 4 * DELAY - 1);
        vm.prank(funder);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RunNotOver.selector, RUN));
        pool.reclaim(RUN);
        assertFalse(pool.isAbandoned(RUN));
        skip(1);
        assertTrue(pool.isAbandoned(RUN));
        assertFalse(pool.isOver(RUN));
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.NothingFunded.selector, ann));
        vm.prank(ann);
        pool.reclaim(RUN);
        vm.expectEmit();
        emit IRewardPool.RunAbandoned(RUN);
        vm.prank(funder);
        assertEq(pool.reclaim(RUN), 9_600);
        // It is over then: nobody funds it by mistake, and nothing more is promised from what is not there.
        assertTrue(pool.isOver(RUN));
        refusePost(IRewardPool.RunIsOver.selector, 2, 1, 400);
        vm.expectRevert(abi.encodeWithSelector(IRewardPool.RunIsOver.selector, RUN));
        pool.fund(RUN, 1);
        assertEq(pool.claim(RUN, 1, ann, 300, proofBeside(bob, 100)), 300);
        assertEq(pool.claim(RUN, 1, bob, 100, proofBeside(ann, 300)), 100);
        assertEq(token.balanceOf(address(pool)), 0);
    }

    function test_operatorWhoIsThereSaysSoWithTheSameRoot() public {
        post(1, 300, 100);
        skip(4 * DELAY);
        post(2, 300, 100);
        skip(1 days);
        assertFalse(pool.isAbandoned(RUN));
        skip(4 * DELAY - 1);
        assertFalse(pool.isAbandoned(RUN));
    }

    /// @dev Any growing totals, claimed in any order, any number of times, from any root: each account gets its last total and no more, and
    /// the pool always holds what it still owes.
    function testFuzz_noDoubleClaimAndAlwaysSolvent(uint16[4] memory anns, uint16[4] memory bobs, uint256 order)
        public
    {
        uint256[4] memory annTotals;
        uint256[4] memory bobTotals;
        uint256 annTotal;
        uint256 bobTotal;
        fund(funder, 1e6);
        for (uint64 i = 0; i < 4; i++) {
            annTotals[i] = annTotal += anns[i] % 5_000;
            bobTotals[i] = bobTotal += bobs[i] % 5_000;
            post(i + 1, annTotal, bobTotal);
            skip(1 hours);
        }
        skip(1 days);
        uint256 paidToAnn;
        for (uint64 i = 0; i < 12; i++) {
            uint64 epoch = uint64((order >> (2 * i)) % 4);
            bool isAnn = (order >> (100 + i)) % 2 == 0;
            address who = isAnn ? ann : bob;
            uint256 mine = isAnn ? annTotals[epoch] : bobTotals[epoch];
            bytes32[] memory proof = isAnn ? proofBeside(bob, bobTotals[epoch]) : proofBeside(ann, annTotals[epoch]);
            uint256 before = pool.claimedBy(RUN, who);
            uint256 amount = pool.claim(RUN, epoch + 1, who, mine, proof);
            assertEq(amount, mine > before ? mine - before : 0);
            if (isAnn) paidToAnn += amount;
            assertGe(pool.poolOf(RUN).held, pool.poolOf(RUN).promised - pool.poolOf(RUN).claimed);
        }
        assertEq(token.balanceOf(ann), paidToAnn);
        pool.claim(RUN, 4, ann, annTotal, proofBeside(bob, bobTotal));
        pool.claim(RUN, 4, bob, bobTotal, proofBeside(ann, annTotal));
        assertEq(token.balanceOf(ann), annTotal);
        assertEq(token.balanceOf(bob), bobTotal);
        assertEq(token.balanceOf(address(pool)), pool.held());
    }

    /// @dev Whatever the operator asks for, the increase stays inside the budget of the time that passed and the money that is there.
    function testFuzz_promisesStayInsideBudgetAndMoney(uint256 total, uint32 waited, uint128 money) public {
        fund(funder, bound(money, 1, 1e20));
        waited = uint32(bound(waited, 0, 60 days));
        total = bound(total, 0, 1e21);
        uint256 since = registry.runOf(RUN).createdAt;
        skip(waited);
        vm.prank(operator);
        try pool.postRoot(RUN, 1, 1, "root", total) {
            assertLe(total, (block.timestamp - since) / 1 hours * terms().epochBudget);
            assertLe(total, token.balanceOf(address(pool)));
        } catch {
            bool isInside = total <= (block.timestamp - since) / 1 hours * terms().epochBudget;
            assertFalse(isInside && total <= pool.held());
        }
    }
}
