// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {CourtScene} from "./CourtScene.sol";

/// @title What a proposal needs
contract CourtTest is CourtScene {
    function test_proposalPutsStakeIntoEscrow() public {
        vm.expectEmit();
        emit ICourt.SlashProposed(
            submission, RUN, node, 600, EVIDENCE, uint48(block.timestamp) + 3 days, judgesFrom(0, 3)
        );
        assertEq(propose(), submission);
        assertEq(vault.positionOf(node).stake, 400);
        assertEq(vault.escrowOf(submission).amount, 600);
        assertEq(court.takenOn(RUN, block.timestamp / 1 days), 600);
        ICourt.Slash memory slash = court.slashOf(submission);
        assertEq(slash.run, RUN);
        assertEq(slash.node, node);
        assertEq(slash.anchoredAt, block.timestamp);
        assertEq(court.token(), address(token));
        assertEq(court.registry(), address(registry));
        assertEq(court.logAnchor(), address(logAnchor));
    }

    function test_submissionIsSlashedOnce() public {
        propose();
        refuse(ICourt.SlashExists.selector);
    }

    function test_receiptMustBeTheNodesForThisRun() public {
        receipt.lease += 1;
        refuse(ICourt.NotReceiptSigner.selector);
        receipt.lease -= 1;
        vm.prank(operator);
        bytes32 other = registry.createRun("run-2", vm.addr(LOG_KEY), terms());
        vm.expectPartialRevert(ICourt.NotReceiptSigner.selector);
        court.propose(other, receipt, verdicts, EVIDENCE, entry);
    }

    function test_quorumMustSayHard() public {
        say(2, 0, 2);
        refuse(ICourt.TooFewVerdicts.selector);
        say(1, 0, 3);
        refuse(ICourt.WrongOutcome.selector);
        say(2, 0, 3);
        verdicts[1] = verdictOf(judgeKeys[1], submission, 1);
        refuse(ICourt.WrongOutcome.selector);
        verdicts[1] = verdictOf(judgeKeys[1], submission, 3);
        refuse(ICourt.WrongOutcome.selector);
        delete verdicts;
        refuse(ICourt.EvidenceUnsigned.selector);
    }

    function test_eachValidatorSpeaksOnce() public {
        verdicts[1] = verdicts[0];
        refuse(ICourt.VerdictsNotSorted.selector);
    }

    function test_verdictsAreSignedForThisSubmission() public {
        verdicts[1] = verdictOf(judgeKeys[1], keccak256("other"), 2);
        refuse(ICourt.NotVerdictSigner.selector);
    }

    function test_evidenceIsThatOfAVerdict() public {
        for (uint256 i = 0; i < 3; i++) {
            verdicts[i].evidence = keccak256("other");
        }
        refuse(ICourt.EvidenceUnsigned.selector);
    }

    function test_judgesHaveSomethingToLose() public {
        vm.prank(address(court));
        vault.seize("earlier", judgeAt(1), 1);
        refuse(ICourt.JudgeStakeTooSmall.selector);
    }

    function test_judgeThatIsLeavingStillCounts() public {
        vm.prank(judgeAt(1));
        vault.unbond(judgeAt(1), 1000);
        propose();
    }

    function test_judgesAreOfDifferentOwnersAndNotOfTheAccused() public {
        hand(judgeKeys[1], judgeAt(0));
        refuse(ICourt.OwnerTwice.selector);
        hand(judgeKeys[1], node);
        refuse(ICourt.OwnerTwice.selector);
    }

    /// @dev Empty a judge's position and let another owner fill it.
    function hand(uint256 key, address owner) internal {
        address validator = vm.addr(key);
        address before = vault.positionOf(validator).owner;
        vm.prank(before);
        vault.unbond(validator, 1000);
        uint256 now_ = block.timestamp;
        vm.warp(now_ + DELAY);
        vm.prank(before);
        vault.withdraw(validator);
        vm.warp(now_);
        bytes32 hash = keccak256(abi.encode(vault.CONSENT_TYPEHASH(), owner, validator, vault.nonceOf(validator)));
        bytes memory consent = sign(key, digestOf(address(vault), hash));
        give(owner, 1000);
        vm.startPrank(owner);
        vault.bind(validator, consent);
        token.approve(address(vault), 1000);
        vault.deposit(validator, 1000);
        vm.stopPrank();
    }

    function test_judgeBoundAfterTheAnchorDoesNotCount() public {
        skip(1);
        hand(judgeKeys[1], makeAddr("new owner"));
        refuse(ICourt.JudgeTooNew.selector);
    }

    function test_judgesAreAsOldAsTheTermsAskAtTheAnchor() public {
        IRunRegistry.Terms memory strict = terms();
        strict.judgeAge = uint32(DELAY) + 1 days;
        vm.prank(operator);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, strict);
        skip(DELAY);
        entry = loggedProposal(submission);
        refuse(ICourt.JudgeTooNew.selector);
        skip(1 days - 2); // they were bound a second before the scene began
        entry = loggedProposal(submission);
        refuse(ICourt.JudgeTooNew.selector);
        skip(1);
        entry = loggedProposal(submission);
        propose();
    }

    function test_entryMustBeTheCoordinatorsAndInTheLog() public {
        entry.offset += 1;
        refuse(ICourt.NotInLeaf.selector);
        entry.offset = type(uint32).max;
        refuse(ICourt.NotInLeaf.selector);
        entry.offset = 41;
        entry.issuedAtMs += 1;
        refuse(ICourt.NotInLeaf.selector);
        entry.issuedAtMs -= 1;
        entry.index -= 1;
        refuse(ILogAnchor.HeadUnknown.selector);
        entry.index += 1;
        entry.leaf = bytes.concat(entry.leaf, hex"00");
        refuse(ILogAnchor.HeadUnknown.selector);
        vm.expectPartialRevert(ICourt.EvidenceUnsigned.selector);
        this.proposeWith(keccak256("other"));
    }

    /// @dev With evidence that no verdict names; the leaf is made to say it too.
    function proposeWith(bytes32 evidence) external {
        bytes memory body =
            bytes.concat(hex"a865766964656e6365c420", evidence, hex"aa7375626d697373696f6ec420", submission);
        ICourt.LoggedEntry memory other = logged("", body, "SlashProposed");
        court.propose(RUN, receipt, verdicts, evidence, other);
    }

    function test_entryOfAnotherKindIsNoProposal() public {
        bytes memory body =
            bytes.concat(hex"a865766964656e6365c420", EVIDENCE, hex"aa7375626d697373696f6ec420", submission);
        entry = logged(hex"83ab616d6f756e745f6e616e6fcd0258", body, "SlashRefusedX");
        refuse(ICourt.NotInLeaf.selector);
    }

    function test_windowCountsFromTheFirstHeadThatCoversTheEntry() public {
        tree.add("later");
        skip(1 hours);
        anchorLog();
        entry.size = tree.size();
        entry.proof = tree.inclusion(entry.index, entry.size);
        refuse(ICourt.NotFirstHead.selector);
    }

    function test_slashComesInsideItsWindow() public {
        skip(terms().slashWindow + 1);
        refuse(ICourt.SlashTooLate.selector);
        rewind(1);
        propose();
    }

    function test_pausedRunProposesNothing() public {
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Paused);
        refuse(IRunRegistry.RunNotActive.selector);
        vm.prank(operator);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Closed);
        propose();
    }

    function test_dayHasALimit() public {
        propose();
        stake(node, 10_000);
        propose(WORKER_KEY);
        ICourt.Receipt memory third = receiptOf(WORKER_KEY);
        bytes32 name = court.submissionOf(RUN, third);
        ICourt.LoggedEntry memory where = loggedProposal(name);
        ICourt.Verdict[] memory made = verdictsOf(name, 2, 0, 3);
        uint256 today = block.timestamp / 1 days;
        vm.expectRevert(abi.encodeWithSelector(ICourt.DayLimit.selector, RUN, today, 1200, 600, 1500));
        court.propose(RUN, third, made, EVIDENCE, where);
        skip(1 days);
        court.propose(RUN, third, made, EVIDENCE, where);
        assertEq(court.takenOn(RUN, today + 1), 600);
    }

    function test_nodeWithoutStakeHasNothingToSlash() public {
        uint256 stranger = WORKER_KEY + 1;
        receipt = receiptOf(stranger);
        submission = court.submissionOf(RUN, receipt);
        entry = loggedProposal(submission);
        say(2, 0, 3);
        refuse(ICourt.NothingToSlash.selector);
    }

    /// @dev Any subset of verdicts, any outcomes, any place in the log: a slash opens only if all of it is right.
    function testFuzz_noSlashWithoutQuorumAndProof(uint8 count, uint8 spoiled, uint8 part) public {
        count = uint8(bound(count, 0, JUDGES));
        say(2, 0, count);
        part = uint8(bound(part, 0, 6));
        uint256 victim = count == 0 ? 0 : bound(spoiled, 0, count - 1);
        bool isRight = part == 0 && count >= 3;
        if (part == 1 && count > 0) verdicts[victim].outcome = 1;
        if (part == 2 && count > 0) verdicts[victim].signature[spoiled % 64] ^= 0x01;
        if (part == 3) entry.leaf[spoiled % entry.leaf.length] ^= 0x01;
        if (part == 4 && entry.proof.length > 0) entry.proof[spoiled % entry.proof.length] ^= bytes32(uint256(1));
        if (part == 5) receipt.signature[spoiled % 64] ^= 0x01;
        if (part == 6) receipt.step += 1 + uint64(spoiled);
        if (part == 1 || part == 2) isRight = false;
        (bool isOpen,) = address(court).call(abi.encodeCall(court.propose, (RUN, receipt, verdicts, EVIDENCE, entry)));
        assertEq(isOpen, isRight);
        assertEq(vault.positionOf(node).stake, isRight ? 400 : 1000);
    }
}
