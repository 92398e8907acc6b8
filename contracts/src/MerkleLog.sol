// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The log's Merkle tree: RFC 6962 hashing, RFC 9162 proofs
/// @notice The same rules as `prime_protocol/merkle.py`. A proof's length follows from index and sizes, so an inner node
/// cannot pass for a leaf.
library MerkleLog {
    error IndexOutside(uint64 index, uint64 size);
    error ProofTooLong(uint256 hashes);
    error ProofTooShort(uint256 hashes);
    error RootDiffers(bytes32 found, bytes32 root);

    function leafHash(bytes calldata leaf) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(0), leaf));
    }

    /// @dev SHA-256 of 1, left, right. In free memory that is not kept: a proof has dozens of them, and encoding each anew costs more than
    /// hashing it.
    function nodeHash(bytes32 left, bytes32 right) internal view returns (bytes32 found) {
        // solhint-disable-next-line no-inline-assembly
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 1)
            mstore(add(free, 1), left)
            mstore(add(free, 33), right)
            if iszero(staticcall(gas(), 2, free, 65, 0, 32)) { revert(0, 0) } // only for want of gas
            found := mload(0)
        }
    }

    /// @notice Reverts unless leaf `index` of the tree (size, root) is this one.
    function verifyInclusion(bytes32 leaf, uint64 index, uint64 size, bytes32 root, bytes32[] calldata proof)
        internal
        view
    {
        bytes32 found = rootFrom(leaf, index, size, proof);
        if (found != root) revert RootDiffers(found, root);
    }

    /// @notice The one root of a tree of that size whose leaf `index` this proof can be of.
    function rootFrom(bytes32 leaf, uint64 index, uint64 size, bytes32[] calldata proof)
        internal
        view
        returns (bytes32 found)
    {
        if (index >= size) revert IndexOutside(index, size);
        uint256 low = index;
        uint256 high = size - 1;
        found = leaf;
        for (uint256 i = 0; i < proof.length; i++) {
            if (high == 0) revert ProofTooLong(proof.length);
            if (low & 1 == 1 || low == high) {
                found = nodeHash(proof[i], found);
                while (low & 1 == 0 && low != 0) (low, high) = (low >> 1, high >> 1);
            } else {
                found = nodeHash(found, proof[i]);
            }
            (low, high) = (low >> 1, high >> 1);
        }
        if (high != 0) revert ProofTooShort(proof.length);
    }

    /// @notice Reverts unless the tree (oldSize, oldRoot) is a prefix of (newSize, newRoot). The caller has checked 0 < oldSize < newSize.
    function verifyConsistency(
        uint64 oldSize,
        bytes32 oldRoot,
        uint64 newSize,
        bytes32 newRoot,
        bytes32[] calldata proof
    ) internal view {
        uint256 low = oldSize - 1;
        uint256 high = newSize - 1;
        while (low & 1 == 1) (low, high) = (low >> 1, high >> 1);
        // An old tree that is one perfect subtree is its own first hash.
        uint256 next = low == 0 ? 0 : 1;
        if (proof.length < next) revert ProofTooShort(proof.length);
        bytes32 oldFound = low == 0 ? oldRoot : proof[0];
        bytes32 newFound = oldFound;
        for (; next < proof.length; next++) {
            if (high == 0) revert ProofTooLong(proof.length);
            if (low & 1 == 1 || low == high) {
                oldFound = nodeHash(proof[next], oldFound);
                newFound = nodeHash(proof[next], newFound);
                while (low & 1 == 0 && low != 0) (low, high) = (low >> 1, high >> 1);
            } else {
                newFound = nodeHash(newFound, proof[next]);
            }
            (low, high) = (low >> 1, high >> 1);
        }
        if (high != 0) revert ProofTooShort(proof.length);
        if (oldFound != oldRoot) revert RootDiffers(oldFound, oldRoot);
        if (newFound != newRoot) revert RootDiffers(newFound, newRoot);
    }
}
