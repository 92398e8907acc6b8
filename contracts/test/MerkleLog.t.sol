// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Test} from "forge-std/Test.sol";

import {MerkleLog} from "../src/MerkleLog.sol";
import {LogTree} from "./LogTree.sol";

/// @dev Calls the library from outside, so that a refusal can be caught.
contract Verifier {
    function inclusion(bytes32 leaf, uint64 index, uint64 size, bytes32 root, bytes32[] calldata proof) external view {
        MerkleLog.verifyInclusion(leaf, index, size, root, proof);
    }

    function consistency(uint64 m, bytes32 rootM, uint64 n, bytes32 rootN, bytes32[] calldata proof) external view {
        MerkleLog.verifyConsistency(m, rootM, n, rootN, proof);
    }

    function leafHash(bytes calldata leaf) external pure returns (bytes32) {
        return MerkleLog.leafHash(leaf);
    }
}

contract MerkleLogTest is Test {
    uint64 internal constant SIZE = 70;

    Verifier internal verifier = new Verifier();
    LogTree internal tree = new LogTree();

    function setUp() public {
        for (uint256 i = 0; i < SIZE; i++) {
            tree.add(abi.encode(i));
        }
    }

    function test_leafHashIsThatOfRfc6962() public view {
        assertEq(verifier.leafHash(""), 0x6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d);
    }

    function test_everyShortTreeIsAPrefixOfEveryLongerOne() public view {
        for (uint64 n = 2; n <= 20; n++) {
            for (uint64 m = 1; m < n; m++) {
                verifier.consistency(m, tree.rootOf(m), n, tree.rootOf(n), tree.consistency(m, n));
            }
        }
    }

    function test_everyLeafOfEveryShortTreeIsIncluded() public view {
        for (uint64 n = 1; n <= 20; n++) {
            for (uint64 i = 0; i < n; i++) {
                verifier.inclusion(tree.hashes(i), i, n, tree.rootOf(n), tree.inclusion(i, n));
            }
        }
    }

    function test_indexOutsideIsNamed() public {
        bytes32 root = tree.rootOf(3);
        vm.expectRevert(abi.encodeWithSelector(MerkleLog.IndexOutside.selector, 3, 3));
        verifier.inclusion(root, 3, 3, root, new bytes32[](0));
    }

    function testFuzz_inclusionHoldsForTheRightLeafOnly(uint64 size, uint64 index, uint64 other) public {
        size = uint64(bound(size, 2, SIZE));
        index = uint64(bound(index, 0, size - 1));
        other = uint64(bound(other, 0, size - 1));
        bytes32 root = tree.rootOf(size);
        bytes32[] memory proof = tree.inclusion(index, size);
        verifier.inclusion(tree.hashes(index), index, size, root, proof);
        if (other == index) return;
        expectRefusal(abi.encodeCall(verifier.inclusion, (tree.hashes(other), index, size, root, proof)));
        expectRefusal(abi.encodeCall(verifier.inclusion, (tree.hashes(index), other, size, root, proof)));
    }

    function testFuzz_damagedInclusionIsRefused(uint64 size, uint64 index, uint256 seed) public {
        size = uint64(bound(size, 1, SIZE));
        index = uint64(bound(index, 0, size - 1));
        bytes32[] memory proof = damaged(tree.inclusion(index, size), seed);
        expectRefusal(abi.encodeCall(verifier.inclusion, (tree.hashes(index), index, size, tree.rootOf(size), proof)));
    }

    function testFuzz_consistencyHolds(uint64 m, uint64 n) public view {
        n = uint64(bound(n, 2, SIZE));
        m = uint64(bound(m, 1, n - 1));
        verifier.consistency(m, tree.rootOf(m), n, tree.rootOf(n), tree.consistency(m, n));
    }

    function testFuzz_damagedConsistencyIsRefused(uint64 m, uint64 n, uint256 seed) public {
        n = uint64(bound(n, 2, SIZE));
        m = uint64(bound(m, 1, n - 1));
        bytes32[] memory proof = damaged(tree.consistency(m, n), seed);
        expectRefusal(abi.encodeCall(verifier.consistency, (m, tree.rootOf(m), n, tree.rootOf(n), proof)));
    }

    /// @dev A log that changes an old entry cannot prove that it extends its former self, with any of its own proofs.
    function testFuzz_forkIsRefused(uint64 m, uint64 n, uint64 changed) public {
        n = uint64(bound(n, 2, SIZE));
        m = uint64(bound(m, 1, n - 1));
        bytes32 oldRoot = tree.rootOf(m);
        tree.replace(uint64(bound(changed, 0, m - 1)), "another story");
        expectRefusal(abi.encodeCall(verifier.consistency, (m, oldRoot, n, tree.rootOf(n), tree.consistency(m, n))));
    }

    /// @dev One hash changed, dropped or added.
    function damaged(bytes32[] memory proof, uint256 seed) internal pure returns (bytes32[] memory broken) {
        uint256 way = proof.length == 0 ? 2 : seed % 3;
        uint256 place = proof.length == 0 ? 0 : (seed >> 8) % proof.length;
        uint256 length = way == 0 ? proof.length : way == 1 ? proof.length - 1 : proof.length + 1;
        broken = new bytes32[](length);
        for (uint256 i = 0; i < length; i++) {
            uint256 from = way == 1 && i >= place ? i + 1 : i;
            broken[i] = from < proof.length ? proof[from] : bytes32(seed);
        }
        if (way == 0) broken[place] = keccak256(abi.encode(broken[place], seed));
    }

    function expectRefusal(bytes memory call_) internal view {
        (bool isAccepted,) = address(verifier).staticcall(call_);
        assertFalse(isAccepted, "a false proof was accepted");
    }
}
