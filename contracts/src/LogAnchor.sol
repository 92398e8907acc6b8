// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {ILogAnchor} from "./interfaces/ILogAnchor.sol";
import {IRunRegistry} from "./interfaces/IRunRegistry.sol";
import {MerkleLog} from "./MerkleLog.sol";

/// @title Keeps the heads of every run's log; see ILogAnchor
contract LogAnchor is ILogAnchor, EIP712 {
    bytes32 public constant TREE_HEAD_TYPEHASH = keccak256("TreeHead(string origin,uint64 size,bytes32 root)");

    IRunRegistry public immutable registry;
    bytes32 private immutable _origin; // as EIP-712 hashes it

    /// @dev One slot. The signer is the registry's, which never changes it.
    struct Latest {
        address headSigner;
        uint64 size;
    }

    mapping(bytes32 run => Latest) private _latest;
    /// @dev The root is a key and not a value: a head takes one slot, and its proofs lead to the root anyway.
    mapping(bytes32 run => mapping(uint64 size => mapping(bytes32 root => Head))) private _heads;
    mapping(address headSigner => uint48) private _frozenAt;

    constructor(IRunRegistry registry_) EIP712("prime-swarm", "1") {
        registry = registry_;
        _origin = keccak256(bytes.concat("prime-swarm/", bytes(registry_.network())));
    }

    /// @inheritdoc ILogAnchor
    function anchor(
        bytes32 run,
        uint64 size,
        bytes32 root,
        bytes32 lastRoot,
        bytes32[] calldata proof,
        bytes calldata signature
    ) external {
        // checks
        address headSigner = _headSignerOf(run);
        if (_frozenAt[headSigner] != 0) revert LogFrozen(run, _frozenAt[headSigner]);
        _checkSigner(headSigner, size, root, signature);
        uint64 previous = _latest[run].size;
        if (size <= previous) revert HeadNotNewer(size, previous);
        if (previous != 0) {
            headAt(run, previous, lastRoot); // reverts where that is not the last one's root
            MerkleLog.verifyConsistency(previous, lastRoot, size, root, proof);
        } else if (proof.length != 0) {
            revert MerkleLog.ProofTooLong(proof.length);
        }

        // effects
        _latest[run] = Latest(headSigner, size);
        _heads[run][size][root] = Head(previous, SafeCast.toUint48(block.timestamp));
        emit Anchored(run, size, root, previous);
    }

    /// @inheritdoc ILogAnchor
    function freeze(bytes32 run, Statement calldata a, Statement calldata b) external {
        if (a.size != b.size || a.root == b.root) revert SameHistory(a.size, b.size);
        _freeze(run, a, b);
    }

    /// @inheritdoc ILogAnchor
    function freezeForked(bytes32 run, Statement calldata a, Statement calldata b, Fork calldata fork) external {
        if (fork.leafA == fork.leafB) revert SameHistory(a.size, b.size);
        MerkleLog.verifyInclusion(fork.leafA, fork.index, a.size, a.root, fork.proofA);
        MerkleLog.verifyInclusion(fork.leafB, fork.index, b.size, b.root, fork.proofB);
        _freeze(run, a, b);
    }

    /// @inheritdoc ILogAnchor
    function requireInclusion(bytes32 run, uint64 size, uint64 index, bytes calldata leaf, bytes32[] calldata proof)
        external
        view
        returns (Head memory)
    {
        return headAt(run, size, MerkleLog.rootFrom(MerkleLog.leafHash(leaf), index, size, proof));
    }

    /// @inheritdoc ILogAnchor
    function frozenAt(bytes32 run) external view returns (uint48) {
        return _frozenAt[_headSignerOf(run)];
    }

    /// @inheritdoc ILogAnchor
    function latestSize(bytes32 run) external view returns (uint64) {
        return _latest[run].size;
    }

    /// @inheritdoc ILogAnchor
    function headAt(bytes32 run, uint64 size, bytes32 root) public view returns (Head memory head) {
        head = _heads[run][size][root];
        if (head.anchoredAt == 0) revert HeadUnknown(run, size, root);
    }

    /// @inheritdoc ILogAnchor
    function headDigest(uint64 size, bytes32 root) public view returns (bytes32) {
        return _hashTypedDataV4(keccak256(abi.encode(TREE_HEAD_TYPEHASH, _origin, size, root)));
    }

    function _freeze(bytes32 run, Statement calldata a, Statement calldata b) private {
        address headSigner = _headSignerOf(run);
        if (_frozenAt[headSigner] != 0) revert LogFrozen(run, _frozenAt[headSigner]);
        _checkStatement(run, headSigner, a);
        _checkStatement(run, headSigner, b);
        _frozenAt[headSigner] = SafeCast.toUint48(block.timestamp);
        emit Frozen(run, headSigner, a.size, a.root, b.size, b.root);
    }

    /// @dev An anchored head needs no signature: its anchor had one.
    function _checkStatement(bytes32 run, address headSigner, Statement calldata statement) private view {
        if (statement.signature.length != 0) {
            _checkSigner(headSigner, statement.size, statement.root, statement.signature);
        } else {
            headAt(run, statement.size, statement.root);
        }
    }

    /// @dev From the slot that an anchor reads anyway; before the first anchor, from the registry.
    function _headSignerOf(bytes32 run) private view returns (address headSigner) {
        headSigner = _latest[run].headSigner;
        if (headSigner == address(0)) headSigner = registry.headSignerOf(run);
    }

    function _checkSigner(address headSigner, uint64 size, bytes32 root, bytes calldata signature) private view {
        address signer = ECDSA.recover(headDigest(size, root), signature);
        if (signer != headSigner) revert NotHeadSigner(signer, headSigner);
    }
}
