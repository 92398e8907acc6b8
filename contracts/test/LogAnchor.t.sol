// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MerkleLog} from "../src/MerkleLog.sol";
import {ILogAnchor} from "../src/interfaces/ILogAnchor.sol";
import {LogTree} from "./LogTree.sol";
import {Network} from "./Network.sol";

contract LogAnchorTest is Network {
    LogTree internal fork = new LogTree();

    function grow(uint256 count) internal {
        for (uint256 i = 0; i < count; i++) {
            bytes memory leaf = abi.encode(tree.size());
            tree.add(leaf);
            fork.add(leaf);
        }
    }

    function said(LogTree by, uint64 size) internal view returns (ILogAnchor.Statement memory) {
        bytes32 root = by.rootOf(size);
        return ILogAnchor.Statement(size, root, headSignature(size, root));
    }

    function unsigned(LogTree by, uint64 size) internal view returns (ILogAnchor.Statement memory) {
        return ILogAnchor.Statement(size, by.rootOf(size), "");
    }

    function forkAt(uint64 index, uint64 sizeA, uint64 sizeB) internal view returns (ILogAnchor.Fork memory) {
        return ILogAnchor.Fork(
            index, tree.hashes(index), fork.hashes(index), tree.inclusion(index, sizeA), fork.inclusion(index, sizeB)
        );
    }

    function test_headsAreKeptBySize() public {
        grow(3);
        anchorLog();
        grow(4);
        skip(60);
        vm.expectEmit();
        emit ILogAnchor.Anchored(RUN, 7, tree.rootOf(7), 3);
        anchorLog();
        assertEq(logAnchor.latestSize(RUN), 7);
        assertEq(logAnchor.headAt(RUN, 3, tree.rootOf(3)).anchoredAt, block.timestamp - 60);
        assertEq(logAnchor.headAt(RUN, 7, tree.rootOf(7)).previous, 3);
        bytes32 root = tree.rootOf(5);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.HeadUnknown.selector, RUN, 5, root));
        logAnchor.headAt(RUN, 5, root);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.HeadUnknown.selector, RUN, 7, root));
        logAnchor.headAt(RUN, 7, root);
    }

    function test_firstHeadHasNothingToProve() public {
        grow(3);
        bytes32 root = tree.rootOf(3);
        bytes memory signature = headSignature(3, root);
        vm.expectRevert(abi.encodeWithSelector(MerkleLog.ProofTooLong.selector, 1));
        logAnchor.anchor(RUN, 3, root, 0, new bytes32[](1), signature);
    }

    function test_headMustBeNewerAndOfTheLogKey() public {
        grow(3);
        anchorLog();
        bytes32 root = tree.rootOf(3);
        bytes memory signature = headSignature(3, root);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.HeadNotNewer.selector, 3, 3));
        logAnchor.anchor(RUN, 3, root, root, new bytes32[](0), signature);
        vm.expectPartialRevert(ILogAnchor.NotHeadSigner.selector);
        logAnchor.anchor(RUN, 4, root, root, new bytes32[](0), signature);
    }

    function test_forkedLogIsNotAnchored() public {
        grow(3);
        anchorLog();
        fork.replace(1, "another story");
        fork.add("more");
        bytes32 root = fork.rootOf(4);
        bytes32[] memory proof = fork.consistency(3, 4);
        bytes memory signature = headSignature(4, root);
        bytes32 lastRoot = tree.rootOf(3);
        vm.expectPartialRevert(MerkleLog.RootDiffers.selector);
        logAnchor.anchor(RUN, 4, root, lastRoot, proof, signature);
        bytes32 forkedRoot = fork.rootOf(3);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.HeadUnknown.selector, RUN, 3, forkedRoot));
        logAnchor.anchor(RUN, 4, root, forkedRoot, proof, signature);
    }

    function test_inclusionIsCheckedAgainstAnAnchoredHead() public {
        grow(5);
        anchorLog();
        bytes32[] memory proof = tree.inclusion(2, 5);
        assertEq(logAnchor.requireInclusion(RUN, 5, 2, abi.encode(2), proof).anchoredAt, block.timestamp);
        vm.expectPartialRevert(ILogAnchor.HeadUnknown.selector);
        logAnchor.requireInclusion(RUN, 5, 2, abi.encode(3), proof);
    }

    function test_twoRootsOfOneSizeFreezeEveryRunOfTheKey() public {
        vm.startPrank(operator);
        bytes32 second = registry.createRun("run-2", vm.addr(LOG_KEY), terms());
        bytes32 other = registry.createRun("run-3", vm.addr(LOG_KEY + 1), terms());
        vm.stopPrank();
        grow(4);
        fork.replace(0, "another story");
        vm.expectEmit();
        emit ILogAnchor.Frozen(RUN, vm.addr(LOG_KEY), 4, tree.rootOf(4), 4, fork.rootOf(4));
        logAnchor.freeze(RUN, said(tree, 4), said(fork, 4));
        assertEq(logAnchor.frozenAt(RUN), block.timestamp);
        assertEq(logAnchor.frozenAt(second), block.timestamp);
        assertEq(logAnchor.frozenAt(other), 0);
        bytes32 root = tree.rootOf(4);
        bytes memory signature = headSignature(4, root);
        vm.expectPartialRevert(ILogAnchor.LogFrozen.selector);
        logAnchor.anchor(RUN, 4, root, 0, new bytes32[](0), signature);
        ILogAnchor.Statement memory a = said(tree, 4);
        ILogAnchor.Statement memory b = said(fork, 4);
        vm.expectPartialRevert(ILogAnchor.LogFrozen.selector);
        logAnchor.freeze(RUN, a, b);
    }

    function test_anchoredHeadStandsForItsSignature() public {
        grow(4);
        anchorLog();
        fork.replace(0, "another story");
        logAnchor.freeze(RUN, unsigned(tree, 4), said(fork, 4));
        assertGt(logAnchor.frozenAt(RUN), 0);
    }

    function test_headThatIsNotAnchoredNeedsASignature() public {
        grow(4);
        fork.replace(0, "another story");
        ILogAnchor.Statement memory a = unsigned(tree, 4);
        ILogAnchor.Statement memory b = said(fork, 4);
        vm.expectPartialRevert(ILogAnchor.HeadUnknown.selector);
        logAnchor.freeze(RUN, a, b);
    }

    function test_headsOfDifferentSizesFreezeByTwoLeavesAtOneIndex() public {
        grow(4);
        fork.replace(2, "another story");
        grow(3);
        logAnchor.freezeForked(RUN, said(tree, 4), said(fork, 7), forkAt(2, 4, 7));
        assertGt(logAnchor.frozenAt(RUN), 0);
    }

    function test_oneHistoryDoesNotFreeze() public {
        grow(7);
        ILogAnchor.Statement memory a = said(tree, 4);
        ILogAnchor.Statement memory b = said(tree, 7);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.SameHistory.selector, 4, 7));
        logAnchor.freeze(RUN, a, b);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.SameHistory.selector, 4, 4));
        logAnchor.freeze(RUN, a, a);
        ILogAnchor.Fork memory same = forkAt(2, 4, 7);
        vm.expectRevert(abi.encodeWithSelector(ILogAnchor.SameHistory.selector, 4, 7));
        logAnchor.freezeForked(RUN, a, b, same);
    }

    /// @dev However the log grew and whatever is claimed about it: heads of one history never freeze.
    function testFuzz_onlyConflictingHeadsFreeze(uint64 m, uint64 n, uint64 index, uint64 other, uint256 key) public {
        grow(20);
        n = uint64(bound(n, 2, 20));
        m = uint64(bound(m, 1, n));
        index = uint64(bound(index, 0, m - 1));
        other = uint64(bound(other, 0, m - 1));
        ILogAnchor.Statement memory a = said(tree, m);
        ILogAnchor.Statement memory b = said(tree, n);
        ILogAnchor.Fork memory claim = forkAt(index, m, n);
        claim.leafB = tree.hashes(other);
        expectRefusal(abi.encodeCall(logAnchor.freeze, (RUN, a, b)));
        expectRefusal(abi.encodeCall(logAnchor.freezeForked, (RUN, a, b, claim)));
        // A true conflict, but one of the two is not signed by the log's key.
        fork.replace(index, "another story");
        ILogAnchor.Statement memory lie = ILogAnchor.Statement(m, fork.rootOf(m), "");
        lie.signature = sign(bound(key, LOG_KEY + 1, type(uint128).max), logAnchor.headDigest(m, lie.root));
        expectRefusal(abi.encodeCall(logAnchor.freeze, (RUN, a, lie)));
        assertEq(logAnchor.frozenAt(RUN), 0);
        // And with both signed it freezes, whatever the sizes.
        logAnchor.freezeForked(RUN, said(tree, m), said(fork, n), forkAt(index, m, n));
        assertGt(logAnchor.frozenAt(RUN), 0);
    }

    /// @dev Any growth is anchored; no changed history is, with any proof of its own.
    function testFuzz_anchorTakesGrowthAndNoFork(uint64 m, uint64 n, uint64 changed) public {
        n = uint64(bound(n, 2, 40));
        m = uint64(bound(m, 1, n - 1));
        grow(m);
        anchorLog();
        grow(n - m);
        fork.replace(uint64(bound(changed, 0, m - 1)), "another story");
        bytes32 root = fork.rootOf(n);
        bytes32[] memory proof = fork.consistency(m, n);
        bytes memory signature = headSignature(n, root);
        expectRefusal(abi.encodeCall(logAnchor.anchor, (RUN, n, root, tree.rootOf(m), proof, signature)));
        expectRefusal(abi.encodeCall(logAnchor.anchor, (RUN, n, root, fork.rootOf(m), proof, signature)));
        anchorLog();
        assertEq(logAnchor.latestSize(RUN), n);
    }

    function expectRefusal(bytes memory call_) internal {
        (bool isAccepted,) = address(logAnchor).call(call_);
        assertFalse(isAccepted, "the anchor accepted what it must refuse");
    }
}
