// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {Network} from "./Network.sol";

/// @dev A slash that is ready to be proposed; each test spoils one part of it.
abstract contract CourtScene is Network {
    address internal node = vm.addr(WORKER_KEY);
    ICourt.Receipt internal receipt;
    ICourt.Verdict[] internal verdicts;
    ICourt.LoggedEntry internal entry;
    bytes32 internal submission;

    function setUp() public virtual override {
        super.setUp();
        stakeJudges();
        stake(node, 1000);
        skip(1);
        receipt = receiptOf(WORKER_KEY);
        submission = court.submissionOf(RUN, receipt);
        entry = loggedProposal(submission);
        say(2, 0, 3);
    }

    function say(uint64 outcome, uint256 first, uint256 count) internal {
        delete verdicts;
        ICourt.Verdict[] memory made = verdictsOf(submission, outcome, first, count);
        for (uint256 i = 0; i < count; i++) {
            verdicts.push(made[i]);
        }
    }

    function propose() internal returns (bytes32) {
        return court.propose(RUN, receipt, verdicts, EVIDENCE, entry);
    }

    function refuse(bytes4 refusal) internal {
        vm.expectPartialRevert(refusal);
        propose();
    }

    function status() internal view returns (uint8) {
        return uint8(court.slashOf(submission).status);
    }

    function freezeLog() internal {
        bytes32 root = keccak256("another story");
        ILogAnchor.Statement memory anchored = ILogAnchor.Statement(entry.size, tree.rootOf(entry.size), "");
        ILogAnchor.Statement memory lie = ILogAnchor.Statement(entry.size, root, headSignature(entry.size, root));
        logAnchor.freeze(RUN, anchored, lie);
    }
}
