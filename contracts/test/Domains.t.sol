// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {LogAnchor} from "../src/LogAnchor.sol";
import {ICourt} from "../src/interfaces/ICourt.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {IStakeVault} from "../src/interfaces/IStakeVault.sol";
import {CourtScene} from "./CourtScene.sol";

/// @dev Whatever is signed is signed for one contract on one chain.
contract DomainsTest is CourtScene {
    uint256 internal constant NODE_KEY = 0x0de;
    address internal owner = makeAddr("owner");

    function consentTo(address vault_) internal view returns (bytes memory) {
        bytes32 hash = keccak256(abi.encode(vault.CONSENT_TYPEHASH(), owner, vm.addr(NODE_KEY), uint64(0)));
        return sign(NODE_KEY, digestOf(vault_, hash));
    }

    function refuseConsent(IStakeVault at, bytes memory consent) internal {
        vm.prank(owner);
        vm.expectPartialRevert(IStakeVault.NotNode.selector);
        at.bind(vm.addr(NODE_KEY), consent);
    }

    function refuseHead(LogAnchor at, bytes32 root, bytes memory signature) internal {
        vm.expectPartialRevert(ILogAnchor.NotHeadSigner.selector);
        at.anchor(RUN, entry.size + 1, root, bytes32(0), new bytes32[](0), signature);
    }

    function test_signaturesOfAnotherChainCountForNothing() public {
        uint256 here = block.chainid;
        bytes32 root = keccak256("a head");
        bytes memory head = headSignature(entry.size + 1, root);
        bytes memory consent = consentTo(address(vault));
        vm.chainId(here + 1);
        refuse(ICourt.NotReceiptSigner.selector);
        refuseHead(logAnchor, root, head);
        refuseConsent(vault, consent);
        ICourt.Verdict memory foreign = verdictOf(judgeKeys[1], submission, 2);
        vm.chainId(here);
        ICourt.Verdict memory own = verdicts[1];
        verdicts[1] = foreign;
        refuse(ICourt.NotVerdictSigner.selector);
        verdicts[1] = own;
        assertEq(propose(), submission);
    }

    function test_signaturesForAnotherContractCountForNothing() public {
        Court other = new Court(token, registry, logAnchor);
        vm.expectPartialRevert(ICourt.NotReceiptSigner.selector);
        other.propose(RUN, receipt, verdicts, EVIDENCE, entry);
        refuseConsent(IStakeVault(other.vault()), consentTo(address(vault)));
        bytes32 root = keccak256("a head");
        refuseHead(new LogAnchor(registry), root, headSignature(entry.size + 1, root));
        assertEq(propose(), submission);
    }
}
