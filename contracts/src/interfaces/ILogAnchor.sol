// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Tree heads of the log, each proven to extend the one before
/// @notice A head is EIP-712 typed data, signed by the run's head signer in this contract's domain:
/// `TreeHead(string origin,uint64 size,bytes32 root)` with origin `prime-swarm/` and the network's name.
/// Whoever holds it may anchor it. Ed25519 cannot be checked here, so the log signs each head that it anchors with this key as well.
interface ILogAnchor {
    /// @notice What is kept of an anchored head. Size and root are where it is kept: whoever asks brings them, or a proof that leads to them.
    struct Head {
        uint64 previous; // size of the head before; entries from there on were first covered by this one
        uint48 anchoredAt; // 0: no such head
    }

    /// @notice What the log's key said: a signature, or none where the head is anchored here.
    struct Statement {
        uint64 size;
        bytes32 root;
        bytes signature; // empty: look it up among the anchored heads
    }

    /// @notice Two leaves at one index: how two heads of different sizes are shown not to be of one history.
    struct Fork {
        uint64 index;
        bytes32 leafA; // leaf hash in the first head's tree
        bytes32 leafB; // leaf hash in the second head's tree
        bytes32[] proofA;
        bytes32[] proofB;
    }

    event Anchored(bytes32 indexed run, uint64 indexed size, bytes32 root, uint64 previous);
    /// @notice The log key told two histories. Every run of that key is frozen, for good.
    event Frozen(
        bytes32 indexed run, address indexed headSigner, uint64 sizeA, bytes32 rootA, uint64 sizeB, bytes32 rootB
    );

    error HeadNotNewer(uint64 size, uint64 latest);
    error NotHeadSigner(address signer, address headSigner);
    error HeadUnknown(bytes32 run, uint64 size, bytes32 root);
    error LogFrozen(bytes32 run, uint48 since);
    error SameHistory(uint64 sizeA, uint64 sizeB);

    /// @notice Anchor the next head of a run's log, with the root of the last one and the RFC 6962 consistency proof from it
    /// (0 and empty for the first).
    function anchor(
        bytes32 run,
        uint64 size,
        bytes32 root,
        bytes32 lastRoot,
        bytes32[] calldata proof,
        bytes calldata signature
    ) external;

    /// @notice Freeze by two heads of one size with different roots.
    function freeze(bytes32 run, Statement calldata a, Statement calldata b) external;

    /// @notice Freeze by two heads of any sizes that hold different leaves at one index.
    function freezeForked(bytes32 run, Statement calldata a, Statement calldata b, Fork calldata fork) external;

    /// @notice When the run's log was shown to have told two histories; 0 if it was not.
    function frozenAt(bytes32 run) external view returns (uint48);

    /// @notice Size of the newest head; 0 before the first.
    function latestSize(bytes32 run) external view returns (uint64);

    /// @notice The anchored head of that size and root; reverts where there is none.
    function headAt(bytes32 run, uint64 size, bytes32 root) external view returns (Head memory);

    /// @notice What a head signer signs.
    function headDigest(uint64 size, bytes32 root) external view returns (bytes32);

    /// @notice Reverts unless the leaf is in the run's log, at that index of the anchored head of that size.
    function requireInclusion(bytes32 run, uint64 size, uint64 index, bytes calldata leaf, bytes32[] calldata proof)
        external
        view
        returns (Head memory);
}
