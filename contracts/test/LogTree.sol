// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title A log of leaf hashes, written as RFC 9162 states it: recursively, sharing nothing with MerkleLog but the hash
contract LogTree {
    bytes32[] public hashes;

    function add(bytes memory leaf) public returns (uint64 index) {
        hashes.push(sha256(bytes.concat(hex"00", leaf)));
        return uint64(hashes.length - 1);
    }

    function replace(uint64 index, bytes memory leaf) public {
        hashes[index] = sha256(bytes.concat(hex"00", leaf));
    }

    function size() public view returns (uint64) {
        return uint64(hashes.length);
    }

    function rootOf(uint64 size_) public view returns (bytes32) {
        return _root(0, size_);
    }

    function inclusion(uint64 index, uint64 size_) public view returns (bytes32[] memory) {
        return _path(index, 0, size_);
    }

    function consistency(uint64 oldSize, uint64 newSize) public view returns (bytes32[] memory) {
        return _subproof(oldSize, 0, newSize, true);
    }

    function _root(uint256 start, uint256 end) private view returns (bytes32) {
        if (end - start == 1) return hashes[start];
        uint256 middle = start + _split(end - start);
        return sha256(bytes.concat(hex"01", _root(start, middle), _root(middle, end)));
    }

    function _path(uint256 index, uint256 start, uint256 end) private view returns (bytes32[] memory) {
        if (end - start == 1) return new bytes32[](0);
        uint256 middle = start + _split(end - start);
        if (index < middle) return _append(_path(index, start, middle), _root(middle, end));
        return _append(_path(index, middle, end), _root(start, middle));
    }

    function _subproof(uint256 oldSize, uint256 start, uint256 end, bool isWhole)
        private
        view
        returns (bytes32[] memory)
    {
        if (oldSize == end) {
            return isWhole ? new bytes32[](0) : _append(new bytes32[](0), _root(start, end));
        }
        uint256 middle = start + _split(end - start);
        if (oldSize <= middle) return _append(_subproof(oldSize, start, middle, isWhole), _root(middle, end));
        return _append(_subproof(oldSize, middle, end, false), _root(start, middle));
    }

    /// @dev Largest power of two below the width.
    function _split(uint256 width) private pure returns (uint256 left) {
        left = 1;
        while (left * 2 < width) left *= 2;
    }

    function _append(bytes32[] memory list, bytes32 last) private pure returns (bytes32[] memory longer) {
        longer = new bytes32[](list.length + 1);
        for (uint256 i = 0; i < list.length; i++) {
            longer[i] = list[i];
        }
        longer[list.length] = last;
    }
}
