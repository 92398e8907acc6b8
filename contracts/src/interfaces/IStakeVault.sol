// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Stake behind nodes
/// @notice One owner per node. What an owner puts in leaves in two ways only: to the owner, after the unbonding delay, or
/// by a slash that the court has proven and nobody overturned. There is no third key.
/// Another's node agrees by EIP-712: `Consent(address owner,address node,uint64 nonce)` in this contract's domain, signed by the node.
interface IStakeVault {
    struct Position {
        address owner;
        uint48 boundAt; // since when this owner stands behind the node
        uint128 stake;
        uint128 unbonding; // asked back, still slashable
        uint128 escrow; // held while slashes are decided
    }

    struct Unbonding {
        uint128 amount;
        uint48 maturesAt;
    }

    /// @notice Stake taken out of a position until its slash ends. The key is the slash's name: a submission, or a penalty.
    struct Escrow {
        address node;
        uint128 amount;
    }

    event Bound(address indexed node, address indexed owner);
    event Deposited(address indexed node, address indexed owner, uint256 amount);
    event Unbonded(address indexed node, address indexed owner, uint256 amount, uint48 maturesAt);
    event Withdrawn(address indexed node, address indexed owner, uint256 amount);
    event Seized(bytes32 indexed submission, address indexed node, uint256 amount);
    event Restored(bytes32 indexed submission, address indexed node, uint256 amount);
    event Forfeited(bytes32 indexed submission, address indexed node, uint256 amount, address to);

    error NotCourt(address caller, address court);
    error NotOwner(address caller, address owner);
    error NodeNotBound(address node);
    error NodeTaken(address node, address owner);
    error NotNode(address signer, address node);
    error AmountMissing();
    error StakeTooSmall(address node, uint256 stake, uint256 amount);
    error TooManyUnbondings(address node, uint256 max);
    error NothingMatured(address node);
    error EscrowTaken(bytes32 submission);
    error EscrowUnknown(bytes32 submission);
    error BountyOverEscrow(bytes32 submission, uint256 held, uint256 bounty);

    /// @notice Owner: bind another's node to me, with the node's consent. A node without anything in its position can be bound anew.
    function bind(address node, bytes calldata consent) external;

    /// @notice Owner: put stake behind my node. A node that is nobody's is bound to itself by its first deposit.
    function deposit(address node, uint256 amount) external;

    /// @notice The same with an ERC-2612 permit instead of an approval.
    function depositWithPermit(address node, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external;

    /// @notice Owner: ask stake back. It matures after the unbonding delay and is slashable until it is withdrawn.
    function unbond(address node, uint256 amount) external;

    /// @notice Owner: take everything that has matured.
    function withdraw(address node) external returns (uint256 amount);

    /// @notice Court: hold stake, then what is unbonding, oldest first, while a slash is decided.
    function seize(bytes32 submission, address node, uint256 amount) external;

    /// @notice Court: the slash was overturned; everything goes back into the stake.
    function restore(bytes32 submission) external;

    /// @notice Court: the slash stands; what was held leaves. The court keeps the bounty for the finder.
    function forfeit(bytes32 submission, address to, uint256 bounty) external;

    function token() external view returns (address);
    function court() external view returns (address);
    function unbondingDelay() external view returns (uint48);
    /// @notice All stake, unbonding stake and escrow: what the vault owes, and holds.
    function total() external view returns (uint256);
    function positionOf(address node) external view returns (Position memory);
    function unbondingsOf(address node) external view returns (Unbonding[] memory);
    function slashableOf(address node) external view returns (uint256);
    function escrowOf(bytes32 submission) external view returns (Escrow memory);
    /// @notice Nonce of the node's next consent.
    function nonceOf(address node) external view returns (uint64);
}
