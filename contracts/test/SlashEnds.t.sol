// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {CourtScene} from "./CourtScene.sol";

/// @title How a slash ends
contract SlashEndsTest is CourtScene {
    // --- Without an appeal ---

    function test_unappealedSlashIsExecutedByAnyoneAfterTheWindow() public {
        propose();
        entry = loggedEnd(submission, "SlashExecuted");
        vm.expectPartialRevert(ICourt.AppealWindowOpen.selector);
        court.execute(submission, address(0), entry);
        vm.expectPartialRevert(ICourt.JudgementWindowOpen.selector);
        court.refund(submission);
        skip(3 days);
        vm.expectEmit();
        emit ICourt.SlashExecuted(submission, 600, 0, address(pool));
        court.execute(submission, address(0), entry);
        assertEq(pool.poolOf(RUN).held, 600);
        assertEq(token.balanceOf(address(pool)), 600);
        assertEq(vault.positionOf(node).escrow, 0);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.execute(submission, address(0), entry);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.refund(submission);
    }

    function test_slashThatTheLogOverturnedIsNeverExecutedAndComesBackWithoutABond() public {
        propose();
        entry = loggedEnd(submission, "SlashOverturned");
        skip(3 days);
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.execute(submission, address(0), entry);
        vm.expectEmit();
        emit ICourt.SlashOverturned(submission);
        vm.prank(makeAddr("anybody"));
        court.overturn(submission, entry);
        assertEq(status(), uint8(ICourt.SlashStatus.Refunded));
        assertEq(vault.positionOf(node).stake, 1000);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.overturn(submission, entry);
    }

    function test_onlyTheLogsOwnWordOverturns() public {
        propose();
        entry = loggedEnd(submission, "SlashExecuted");
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.overturn(submission, entry);
        entry = loggedEnd(keccak256("another submission"), "SlashOverturned");
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.overturn(submission, entry);
        entry = loggedEnd(submission, "SlashOverturned");
        entry.index -= 1;
        vm.expectPartialRevert(ILogAnchor.HeadUnknown.selector);
        court.overturn(submission, entry);
    }

    function test_bondedAppealIsLeftToTheSecondQuorum() public {
        propose();
        appeal(submission, node);
        entry = loggedEnd(submission, "SlashOverturned");
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.overturn(submission, entry);
    }

    function test_slashThatTheLogNeverEndsComesBack() public {
        propose();
        uint48 until = court.slashOf(submission).judgeUntil;
        assertEq(until, block.timestamp + 3 days + 3 days + 4 days);
        skip(10 days - 1);
        vm.expectPartialRevert(ICourt.JudgementWindowOpen.selector);
        court.refund(submission);
        entry = loggedEnd(submission, "SlashExecuted");
        skip(1);
        vm.expectPartialRevert(ICourt.JudgementTooLate.selector);
        court.execute(submission, address(0), entry);
        court.refund(submission);
        assertEq(vault.positionOf(node).stake, 1000);
    }

    function test_termsMayBurn() public {
        IRunRegistry.Terms memory burning = terms();
        burning.slashToPool = false;
        vm.startPrank(operator);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, burning);
        vm.stopPrank();
        skip(DELAY);
        bytes32 name = propose(WORKER_KEY);
        entry = loggedEnd(name, "SlashExecuted");
        skip(3 days);
        court.execute(name, address(0), entry);
        assertEq(token.balanceOf(BURNED), 600);
        assertEq(token.balanceOf(address(pool)), 0);
    }

    function test_poolThatIsOverReceivesNothing() public {
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Closed);
        skip(DELAY - 5 days);
        bytes32 name = propose(WORKER_KEY);
        entry = loggedEnd(name, "SlashExecuted");
        skip(5 days);
        court.execute(name, address(0), entry);
        assertEq(token.balanceOf(BURNED), 600);
    }

    // --- Appeals ---

    function test_appealTakesABondFromTheAccusedInTime() public {
        propose();
        vm.expectRevert(abi.encodeWithSelector(ICourt.NotAccused.selector, address(this), node, node));
        court.appeal(submission);
        skip(3 days - 1);
        vm.startPrank(node);
        deal(address(token), node, 50);
        token.approve(address(court), 50);
        vm.expectEmit();
        emit ICourt.Appealed(submission, node, 50, uint48(block.timestamp) + 3 days);
        court.appeal(submission);
        vm.stopPrank();
        assertEq(court.bonds(), 50);
        assertEq(token.balanceOf(address(court)), 50);
        entry = loggedEnd(submission, "SlashExecuted");
        skip(1);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.execute(submission, address(0), entry);
    }

    function test_lateAppealIsRefused() public {
        propose();
        skip(3 days);
        vm.prank(node);
        vm.expectPartialRevert(ICourt.AppealTooLate.selector);
        court.appeal(submission);
    }

    function judge(uint64 outcome, uint256 first, string memory kind) internal {
        entry = loggedEnd(submission, kind);
        say(outcome, first, 3);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
    }

    function test_appealThatOthersRefuseIsExecuted() public {
        propose();
        appeal(submission, node);
        judge(2, 3, "SlashExecuted");
        assertEq(status(), uint8(ICourt.SlashStatus.Executed));
        assertEq(pool.poolOf(RUN).held, 650);
        assertEq(court.bonds(), 0);
        assertEq(token.balanceOf(address(court)), 0);
    }

    function test_appealThatOthersUpholdGivesEverythingBack() public {
        propose();
        appeal(submission, node);
        judge(0, 3, "SlashOverturned");
        assertEq(status(), uint8(ICourt.SlashStatus.Refunded));
        assertEq(vault.positionOf(node).stake, 1000);
        assertEq(token.balanceOf(node), 50);
        assertEq(court.bonds(), 0);
    }

    function test_undecidedAppealIsRefundedAfterTheWindow() public {
        propose();
        appeal(submission, node);
        vm.expectPartialRevert(ICourt.JudgementWindowOpen.selector);
        court.refund(submission);
        skip(3 days);
        entry = loggedEnd(submission, "SlashExecuted");
        say(2, 3, 3);
        vm.expectPartialRevert(ICourt.JudgementTooLate.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
        court.refund(submission);
        assertEq(vault.positionOf(node).stake, 1000);
        assertEq(token.balanceOf(node), 50);
    }

    function test_appealIsDecidedByOthers() public {
        propose();
        appeal(submission, node);
        entry = loggedEnd(submission, "SlashExecuted");
        say(2, 2, 3);
        vm.expectPartialRevert(ICourt.JudgeAskedBefore.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
        vm.expectPartialRevert(ICourt.JudgesDiffer.selector);
        court.judge(submission, judgesFrom(5, 3), verdicts, address(0), entry);
        say(2, 3, 2);
        vm.expectPartialRevert(ICourt.TooFewVerdicts.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
    }

    function test_decisionIsTheLogsToo() public {
        propose();
        appeal(submission, node);
        entry = loggedEnd(submission, "SlashExecuted");
        say(0, 3, 3);
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
        delete verdicts;
        vm.expectPartialRevert(ICourt.NotInLeaf.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
    }

    function test_onlyAnAppealIsJudged() public {
        propose();
        entry = loggedEnd(submission, "SlashExecuted");
        say(2, 3, 3);
        vm.expectPartialRevert(ICourt.WrongStatus.selector);
        court.judge(submission, judgesFrom(0, 3), verdicts, address(0), entry);
    }

    // --- A log that told two histories ---

    function test_frozenLogConvictsNobody() public {
        propose();
        entry = loggedEnd(submission, "SlashExecuted");
        freezeLog();
        skip(3 days);
        vm.expectPartialRevert(ICourt.RunFrozen.selector);
        court.execute(submission, address(0), entry);
        court.refund(submission);
        assertEq(vault.positionOf(node).stake, 1000);
    }

    function test_frozenLogProposesNothing() public {
        freezeLog();
        refuse(ICourt.RunFrozen.selector);
    }

    /// @dev Whatever happens when: stake leaves only by the log's word, after a closed window or a second quorum, and otherwise comes back.
    function testFuzz_everySlashEnds(uint32 waited, uint8 end, bool isAppealed, bool isExecuted) public {
        propose();
        if (isAppealed) appeal(submission, node);
        waited = uint32(bound(waited, 0, 12 days));
        end = uint8(bound(end, 0, 3));
        skip(waited);
        bool isWindowOver = waited >= 3 days;
        bool isTooLate = waited >= (isAppealed ? 3 days : 10 days);
        uint256 judgedBefore = token.balanceOf(judgeAt(0)) + token.balanceOf(judgeAt(3));
        entry = loggedEnd(submission, isExecuted ? "SlashExecuted" : "SlashOverturned");
        if (end == 0) {
            bytes memory call_ = abi.encodeCall(court.execute, (submission, address(0), entry));
            attempt(call_, isExecuted && !isAppealed && isWindowOver && !isTooLate);
        }
        if (end == 1) attempt(abi.encodeCall(court.refund, submission), isTooLate);
        if (end == 2) attempt(abi.encodeCall(court.overturn, (submission, entry)), !isExecuted && !isAppealed);
        if (end == 3) {
            say(isExecuted ? 2 : 0, 3, 3);
            bytes memory call_ =
                abi.encodeCall(court.judge, (submission, judgesFrom(0, 3), verdicts, address(0), entry));
            attempt(call_, isAppealed && !isTooLate);
        }
        assertEq(token.balanceOf(judgeAt(0)) + token.balanceOf(judgeAt(3)), judgedBefore, "a judge gained");
        assertEq(vault.total(), token.balanceOf(address(vault)));
        assertEq(court.bonds(), token.balanceOf(address(court)));
        assertEq(pool.held(), token.balanceOf(address(pool)));
    }

    function attempt(bytes memory call_, bool isAllowed) internal {
        (bool isDone,) = address(court).call(call_);
        assertEq(isDone, isAllowed);
    }
}
