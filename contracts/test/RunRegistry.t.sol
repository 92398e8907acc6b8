// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunRegistry} from "../src/RunRegistry.sol";
import {IRunRegistry} from "../src/interfaces/IRunRegistry.sol";
import {Network} from "./Network.sol";

contract RunRegistryTest is Network {
    function announce(uint48 startsAt, IRunRegistry.Terms memory wanted) internal {
        vm.prank(operator);
        registry.setTerms(RUN, startsAt, wanted);
    }

    function refuse(bytes memory refusal, IRunRegistry.Terms memory wanted) internal {
        vm.prank(operator);
        vm.expectRevert(refusal);
        registry.createRun("other", address(1), wanted);
    }

    function set(IRunRegistry.RunStatus status) internal {
        vm.prank(operator);
        registry.setStatus(RUN, status);
    }

    function test_runIsNamedByTheHashOfItsName() public view {
        IRunRegistry.Run memory run = registry.runOf(keccak256("run-1"));
        assertEq(run.name, "run-1");
        assertEq(run.headSigner, vm.addr(LOG_KEY));
        assertEq(uint8(run.status), uint8(IRunRegistry.RunStatus.Active));
        assertEq(run.createdAt, block.timestamp);
        assertEq(registry.network(), "testnet");
        (,, uint48 overAt) = registry.statusOf(RUN);
        assertEq(overAt, 0);
    }

    function test_registryNeedsItsParts() public {
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.BadName.selector, ""));
        new RunRegistry("", operator, DELAY);
        string memory name = "a-name-of-more-than-forty-characters-is-not-one";
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.BadName.selector, name));
        new RunRegistry(name, operator, DELAY);
        vm.expectRevert(IRunRegistry.OperatorMissing.selector);
        new RunRegistry(NETWORK, address(0), DELAY);
        vm.expectRevert(IRunRegistry.DelayMissing.selector);
        new RunRegistry(NETWORK, operator, 0);
    }

    function test_onlyTheOperatorDecides() public {
        bytes memory refusal = abi.encodeWithSelector(IRunRegistry.NotOperator.selector, address(this), operator);
        vm.expectRevert(refusal);
        registry.createRun("other", address(1), terms());
        vm.expectRevert(refusal);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, terms());
        vm.expectRevert(refusal);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Paused);
    }

    function test_runIsCreatedOnce() public {
        vm.startPrank(operator);
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.RunExists.selector, RUN));
        registry.createRun(RUN_NAME, address(1), terms());
        vm.expectRevert(IRunRegistry.HeadSignerMissing.selector);
        registry.createRun("other", address(0), terms());
        vm.stopPrank();
    }

    function test_unknownRunIsNamed() public {
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.RunUnknown.selector, bytes32("none")));
        registry.runOf("none");
    }

    function test_termsThatCannotHoldAreRefused() public {
        IRunRegistry.Terms memory wanted = terms();
        wanted.quorum = 0;
        refuse(abi.encodeWithSelector(IRunRegistry.QuorumOutOfRange.selector, 0, 15), wanted);
        wanted.quorum = 16;
        refuse(abi.encodeWithSelector(IRunRegistry.QuorumOutOfRange.selector, 16, 15), wanted);
        wanted = terms();
        wanted.slashAmount = 1001;
        refuse(abi.encodeWithSelector(IRunRegistry.SlashOverStake.selector, 1001, 1000), wanted);
        wanted = terms();
        wanted.slashPerDay = 599;
        refuse(abi.encodeWithSelector(IRunRegistry.DayUnderSlash.selector, 599, 600), wanted);
        wanted = terms();
        wanted.validatorSlash = 1001;
        refuse(abi.encodeWithSelector(IRunRegistry.SlashOverStake.selector, 1001, 1000), wanted);
        wanted.validatorSlash = 900;
        wanted.slashPerDay = 899;
        refuse(abi.encodeWithSelector(IRunRegistry.DayUnderSlash.selector, 899, 900), wanted);
        wanted = terms();
        wanted.bountyShare = 10_001;
        refuse(abi.encodeWithSelector(IRunRegistry.ShareOutOfRange.selector, 10_001, 10_000), wanted);
        wanted = terms();
        wanted.epochTime = 0;
        refuse(abi.encodeWithSelector(IRunRegistry.TimeMissing.selector), wanted);
        wanted = terms();
        wanted.appealWindow += 1;
        refuse(abi.encodeWithSelector(IRunRegistry.WindowsOverDelay.selector, DELAY + 1, DELAY), wanted);
    }

    function test_newTermsStartAfterNotice() public {
        IRunRegistry.Terms memory wanted = terms();
        wanted.quorum = 5;
        uint48 earliest = uint48(block.timestamp) + DELAY;
        vm.prank(operator);
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.TermsTooSoon.selector, RUN, earliest - 1, earliest));
        registry.setTerms(RUN, earliest - 1, wanted);
        announce(earliest, wanted);
        assertEq(registry.termsAt(RUN, earliest - 1).quorum, 3);
        assertEq(registry.termsAt(RUN, earliest).quorum, 5);
        vm.prank(operator);
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.TermsTooSoon.selector, RUN, earliest, earliest + 1));
        registry.setTerms(RUN, earliest, wanted);
    }

    function test_noTermsBeforeTheRunBegan() public {
        uint48 before = uint48(block.timestamp) - 1;
        vm.expectRevert(abi.encodeWithSelector(IRunRegistry.NoTermsAt.selector, RUN, before));
        registry.termsAt(RUN, before);
    }

    function test_closedIsForGood() public {
        set(IRunRegistry.RunStatus.Paused);
        set(IRunRegistry.RunStatus.Active);
        set(IRunRegistry.RunStatus.Closed);
        (,, uint48 overAt) = registry.statusOf(RUN);
        assertEq(overAt, block.timestamp + DELAY);
        vm.startPrank(operator);
        vm.expectPartialRevert(IRunRegistry.StatusRefused.selector);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Active);
        vm.expectPartialRevert(IRunRegistry.RunNotActive.selector);
        registry.setTerms(RUN, uint48(block.timestamp) + DELAY, terms());
        vm.stopPrank();
    }

    function test_statusMustChange() public {
        vm.startPrank(operator);
        vm.expectPartialRevert(IRunRegistry.StatusRefused.selector);
        registry.setStatus(RUN, IRunRegistry.RunStatus.Active);
        vm.expectPartialRevert(IRunRegistry.StatusRefused.selector);
        registry.setStatus(RUN, IRunRegistry.RunStatus.None);
        vm.stopPrank();
    }

    /// @dev Whatever is announced: what held at a time that has passed holds for ever, and whoever asks his stake back when he hears of
    /// new terms has it before they start.
    function testFuzz_termsChangeOnlyForward(uint8[4] memory quorums, uint32[4] memory waits, uint32 asked) public {
        uint48 now_ = uint48(block.timestamp);
        uint48 past = now_ - uint48(bound(asked, 0, 1 days));
        skip(1 days);
        for (uint256 i = 0; i < quorums.length; i++) {
            IRunRegistry.Terms memory wanted = terms();
            wanted.quorum = uint8(bound(quorums[i], 1, 15));
            uint48 startsAt = uint48(block.timestamp) + uint48(bound(waits[i], 0, 30 days));
            vm.prank(operator);
            try registry.setTerms(RUN, startsAt, wanted) {
                assertGe(startsAt, block.timestamp + DELAY);
                assertEq(registry.termsAt(RUN, startsAt).quorum, wanted.quorum);
                assertEq(registry.termsAt(RUN, uint48(block.timestamp)).quorum, terms().quorum);
            } catch {}
        }
        if (past >= now_) assertEq(registry.termsAt(RUN, past).quorum, terms().quorum);
    }
}
