// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {IStakeVault} from "../src/interfaces/IStakeVault.sol";
import {CourtScene} from "./CourtScene.sol";

/// @title Penalties of validators, and bounties of finders
contract PenaltyTest is CourtScene {
    bytes32 internal judged = keccak256("a submission that was judged");
    address internal validator;
    address internal finder = makeAddr("finder");
    ICourt.Verdict internal refuted;
    ICourt.LoggedEntry internal scored;
    bytes32 internal penalty;

    function setUp() public override {
        super.setUp();
        validator = judgeAt(0);
        penalty = court.penaltyOf(judged, validator);
        prepare(2);
    }

    function prepare(uint64 outcome) internal {
        refuted = verdictOf(judgeKeys[0], judged, outcome);
        scored = loggedPenalty(judged, validator, 7);
    }

    function proposePenalty() internal returns (bytes32) {
        return court.proposePenalty(RUN, judged, refuted, 7, scored);
    }

    function refusePenalty(bytes4 refusal) internal {
        vm.expectPartialRevert(refusal);
        proposePenalty();
    }

    function judgePenalty(uint64 outcome, uint256 first, uint256 count) internal {
        court.judgePenalty(judged, validator, verdictsOf(judged, outcome, first, count));
    }

    function refuseJudgement(bytes4 refusal, uint64 outcome, uint256 first, uint256 count) internal {
        ICourt.Verdict[] memory others = verdictsOf(judged, outcome, first, count);
        vm.expectPartialRevert(refusal);
        court.judgePenalty(judged, validator, others);
    }

    // --- Proposals ---

    function test_penaltyRestsOnTheLogsWordAndTheValidatorsOwn() public {
        vm.expectEmit();
        emit ICourt.PenaltyProposed(penalty, RUN, validator, judged, 400, uint48(block.timestamp) + 3 days);
        vm.prank(makeAddr("anybody"));
        assertEq(proposePenalty(), penalty);
        ICourt.Slash memory slash = court.slashOf(penalty);
        assertEq(slash.node, validator);
        assertTrue(slash.isPenalty);
        assertEq(slash.refuted, 2);
        assertEq(slash.judgeUntil, block.timestamp + 10 days);
        assertEq(vault.positionOf(validator).stake, 600);
        assertEq(vault.positionOf(validator).escrow, 400);
        assertEq(court.takenOn(RUN, block.timestamp / 1 days), 400);
    }

    function test_penaltyIsTakenOnce() public {
        proposePenalty();
        refusePenalty(ICourt.SlashExists.selector);
        skip(3 days);
        court.executePenalty(penalty);
        scored = loggedPenalty(judged, validator, 7);
        refusePenalty(ICourt.SlashExists.selector);
    }

    function test_inventedPenaltyIsRefused() public {
        scored = loggedPenalty(keccak256("another submission"), validator, 7);
        refusePenalty(ICourt.NotInLeaf.selector);
        scored = loggedPenalty(judged, judgeAt(1), 7);
        refusePenalty(ICourt.NotInLeaf.selector);
        scored = loggedPenalty(judged, validator, 8);
        refusePenalty(ICourt.NotInLeaf.selector);
        scored = loggedPenalty(judged, validator, 0);
        vm.expectPartialRevert(ICourt.PenaltyMissing.selector);
        court.proposePenalty(RUN, judged, refuted, 0, scored);
        scored = loggedEnd(judged, "SlashExecuted");
        refusePenalty(ICourt.NotInLeaf.selector);
    }

    function test_validatorMustHaveSpokenAboutThatSubmission() public {
        refuted = verdictOf(judgeKeys[0], keccak256("another submission"), 2);
        refusePenalty(ICourt.NotVerdictSigner.selector);
        refuted = verdictOf(judgeKeys[1], judged, 2);
        refuted.validator = validator;
        refusePenalty(ICourt.NotVerdictSigner.selector);
        refuted = verdictOf(judgeKeys[0], judged, 3);
        refusePenalty(ICourt.WrongOutcome.selector);
    }

    function test_penaltyIsBoundedByTimeDayAndStake() public {
        uint256 timeNow = block.timestamp;
        vm.warp(timeNow + 4 days + 1);
        refusePenalty(ICourt.SlashTooLate.selector);
        vm.warp(timeNow);
        propose(WORKER_KEY);
        stake(vm.addr(WORKER_KEY + 1), 1000);
        propose(WORKER_KEY + 1);
        refusePenalty(ICourt.DayLimit.selector);
        vm.warp(timeNow + 1 days);
        vm.prank(validator);
        vault.unbond(validator, 900);
        proposePenalty();
        IStakeVault.Position memory position = vault.positionOf(validator);
        assertEq(position.stake, 0);
        assertEq(position.unbonding, 600, "what is unbonding can be taken too");
        assertEq(position.escrow, 400);
    }

    function test_penaltyOfAnEmptyPositionIsRefused() public {
        vm.startPrank(validator);
        vault.unbond(validator, 1000);
        skip(DELAY);
        vault.withdraw(validator);
        vm.stopPrank();
        scored = loggedPenalty(judged, validator, 7);
        refusePenalty(ICourt.NothingToSlash.selector);
    }

    function test_pausedRunAndFrozenLogPenaliseNobody() public {
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Paused);
        refusePenalty(IRunRegistry.RunNotActive.selector);
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Active);
        proposePenalty();
        freezeLog();
        skip(3 days);
        vm.expectPartialRevert(ICourt.RunFrozen.selector);
        court.executePenalty(penalty);
        court.refund(penalty);
        assertEq(vault.positionOf(validator).stake, 1000);
    }

    // --- Ends ---

    function test_unappealedPenaltyIsExecutedByAnyoneAfterTheWindow() public {
        proposePenalty();
        vm.expectPartialRevert(ICourt.AppealWindowOpen.selector);
        court.executePenalty(penalty);
        skip(3 days);
        court.executePenalty(penalty);
        assertEq(pool.poolOf(RUN).held, 400);
        assertEq(pool.poolOf(RUN).forfeited, 400);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.executePenalty(penalty);
    }

    function test_appealFailsWhereAQuorumOfOthersSignedTheOpposite() public {
        proposePenalty();
        vm.expectPartialRevert(ICourt.NotAccused.selector);
        court.appeal(penalty);
        appeal(penalty, validator);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.executePenalty(penalty);
        refuseJudgement(ICourt.TooFewVerdicts.selector, 0, 1, 2);
        stake(validator, 1000);
        refuseJudgement(ICourt.OwnerTwice.selector, 0, 0, 3);
        refuseJudgement(ICourt.NotRefuted.selector, 2, 1, 3);
        refuseJudgement(ICourt.NotRefuted.selector, 1, 1, 3);
        judgePenalty(0, 1, 3);
        assertEq(pool.poolOf(RUN).held, 450);
        assertEq(court.bonds(), 0);
    }

    function test_validatorThatAcceptedFraudIsRefutedByFraudulentVerdictsOnly() public {
        prepare(0);
        proposePenalty();
        appeal(penalty, validator);
        refuseJudgement(ICourt.NotRefuted.selector, 0, 1, 3);
        judgePenalty(2, 1, 3);
        assertEq(pool.poolOf(RUN).held, 450);
    }

    /// @dev What an inspector alone says is the operator's word: no quorum can be shown for it.
    function test_appealWithoutAQuorumAgainstItIsRefunded() public {
        prepare(1);
        proposePenalty();
        appeal(penalty, validator);
        for (uint64 outcome = 0; outcome < 3; outcome++) {
            refuseJudgement(ICourt.NotRefuted.selector, outcome, 1, 3);
        }
        skip(3 days);
        court.refund(penalty);
        assertEq(vault.positionOf(validator).stake, 1000);
        assertEq(token.balanceOf(validator), 50);
    }

    function test_aSlashIsNoPenaltyAndAPenaltyNoSlash() public {
        propose();
        proposePenalty();
        entry = loggedEnd(penalty, "SlashExecuted");
        skip(3 days);
        vm.expectPartialRevert(ICourt.NotPenalty.selector);
        court.executePenalty(submission);
        vm.expectPartialRevert(ICourt.NotSlash.selector);
        court.execute(penalty, address(0), entry);
        entry = loggedEnd(penalty, "SlashOverturned");
        vm.expectPartialRevert(ICourt.NotSlash.selector);
        court.overturn(penalty, entry);
        scored = loggedPenalty(judged, judgeAt(4), 7);
        court.proposePenalty(RUN, judged, verdictOf(judgeKeys[4], judged, 2), 7, scored);
        bytes32 other = court.penaltyOf(judged, judgeAt(4));
        appeal(other, judgeAt(4));
        entry = loggedEnd(other, "SlashExecuted");
        say(2, 1, 3);
        vm.expectPartialRevert(ICourt.JudgesDiffer.selector);
        court.judge(other, new address[](0), verdicts, address(0), entry);
    }

    // --- Bounties ---

    function test_finderClaimsItsShareOfTheSlash() public {
        propose();
        entry = loggedExecution(submission, finder);
        skip(3 days);
        vm.expectEmit();
        emit ICourt.BountyGranted(submission, finder, 120);
        court.execute(submission, finder, entry);
        assertEq(pool.poolOf(RUN).held, 480);
        assertEq(court.bountyOf(finder), 120);
        assertEq(court.bounties(), 120);
        vm.prank(makeAddr("anybody"));
        assertEq(court.claimBounty(finder), 120);
        assertEq(token.balanceOf(finder), 120);
        vm.expectPartialRevert(ICourt.NothingToClaim.selector);
        court.claimBounty(finder);
        assertEq(token.balanceOf(address(court)), 0);
    }

    function test_bountyGoesToTheFinderInTheLogAndToNobodyElse() public {
        propose();
        entry = loggedExecution(submission, finder);
        skip(3 days);
        for (uint256 i = 0; i < 2; i++) {
            vm.expectPartialRevert(ICourt.NotInLeaf.selector);
            court.execute(submission, i == 0 ? operator : address(0), entry);
        }
        entry = loggedEnd(submission, "SlashExecuted");
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.execute(submission, finder, entry);
        court.execute(submission, address(0), entry);
        assertEq(pool.poolOf(RUN).held, 600);
        assertEq(court.bounties(), 0);
    }

    function test_bountyAfterAFailedAppealIsOfTheStakeAndNotOfTheBond() public {
        propose();
        appeal(submission, node);
        entry = loggedExecution(submission, finder);
        say(2, 3, 3);
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, operator, entry);
        court.judge(submission, judgesFrom(0, 3), verdicts, finder, entry);
        assertEq(court.bountyOf(finder), 120);
        assertEq(pool.poolOf(RUN).held, 530);
    }

    /// @dev Bonds and bounties are kept apart, whatever the share and whoever claims when.
    function testFuzz_shareIsTakenFromTheSlashAndNothingIsStranded(uint16 share, bool isPooled, bool isAppealed)
        public
    {
        IRunRegistry.Terms memory shared = terms();
        shared.bountyShare = uint16(bound(share, 0, 10_000));
        shared.slashToPool = isPooled;
        vm.prank(operator);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, shared);
        skip(DELAY);
        bytes32 name = propose(WORKER_KEY);
        scored = loggedPenalty(judged, validator, 7);
        proposePenalty();
        if (isAppealed) appeal(penalty, validator);
        entry = loggedExecution(name, finder);
        skip(3 days);
        court.execute(name, finder, entry);
        uint256 bounty = uint256(600) * shared.bountyShare / 10_000;
        assertEq(court.bountyOf(finder), bounty);
        assertEq(token.balanceOf(address(court)), court.bonds() + court.bounties());
        assertEq(isPooled ? pool.held() : token.balanceOf(BURNED), 600 - bounty);
        if (bounty != 0) court.claimBounty(finder);
        assertEq(token.balanceOf(finder), bounty);
        if (isAppealed) court.refund(penalty);
        else court.executePenalty(penalty);
        assertEq(token.balanceOf(address(court)), 0);
        assertEq(vault.total(), token.balanceOf(address(vault)));
        assertEq(pool.held(), token.balanceOf(address(pool)));
    }
}
