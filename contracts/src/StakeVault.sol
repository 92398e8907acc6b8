// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {TokenFlow} from "./TokenFlow.sol";

/// @title Holds stake; see IStakeVault
contract StakeVault is IStakeVault, EIP712 {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;
    using TokenFlow for IERC20;

    /// @notice Open unbondings of one node, so that a slash never walks far. The log has the same limit.
    uint256 public constant UNBONDINGS_MAX = 16;
    bytes32 public constant CONSENT_TYPEHASH = keccak256("Consent(address owner,address node,uint64 nonce)");

    /// @inheritdoc IStakeVault
    address public immutable court;
    /// @inheritdoc IStakeVault
    uint48 public immutable unbondingDelay;
    /// @inheritdoc IStakeVault
    uint256 public total;
    /// @inheritdoc IStakeVault
    mapping(address node => uint64) public nonceOf;

    IERC20 private immutable _token;
    mapping(address node => Position) private _positions;
    mapping(address node => Unbonding[]) private _unbondings; // oldest first
    mapping(bytes32 submission => Escrow) private _escrows;

    modifier onlyCourt() {
        if (msg.sender != court) revert NotCourt(msg.sender, court);
        _;
    }

    /// @dev The court makes its own vault, so there is no moment at which anybody else could be the court.
    constructor(IERC20 token_, uint48 unbondingDelay_) EIP712("prime-swarm", "1") {
        _token = token_;
        court = msg.sender;
        unbondingDelay = unbondingDelay_;
    }

    /// @inheritdoc IStakeVault
    function bind(address node, bytes calldata consent) external {
        uint64 nonce = nonceOf[node]++;
        bytes32 digest = _hashTypedDataV4(keccak256(abi.encode(CONSENT_TYPEHASH, msg.sender, node, nonce)));
        address signer = ECDSA.recover(digest, consent);
        if (signer != node) revert NotNode(signer, node);
        _bind(node, msg.sender);
    }

    /// @inheritdoc IStakeVault
    function deposit(address node, uint256 amount) external {
        _deposit(node, amount);
    }

    /// @inheritdoc IStakeVault
    function depositWithPermit(address node, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external {
        _token.permit(amount, deadline, v, r, s);
        _deposit(node, amount);
    }

    /// @inheritdoc IStakeVault
    function unbond(address node, uint256 amount) external {
        // checks
        Position storage position = _owned(node);
        if (amount == 0) revert AmountMissing();
        if (amount > position.stake) revert StakeTooSmall(node, position.stake, amount);
        if (_unbondings[node].length >= UNBONDINGS_MAX) revert TooManyUnbondings(node, UNBONDINGS_MAX);

        // effects
        uint48 maturesAt = block.timestamp.toUint48() + unbondingDelay;
        position.stake -= amount.toUint128();
        position.unbonding += amount.toUint128();
        _unbondings[node].push(Unbonding(amount.toUint128(), maturesAt));
        emit Unbonded(node, msg.sender, amount, maturesAt);
    }

    /// @inheritdoc IStakeVault
    function withdraw(address node) external returns (uint256 amount) {
        // checks
        Position storage position = _owned(node);
        Unbonding[] storage parts = _unbondings[node];
        uint256 ripe = 0;
        for (; ripe < parts.length && parts[ripe].maturesAt <= block.timestamp; ripe++) {
            amount += parts[ripe].amount;
        }
        if (amount == 0) revert NothingMatured(node);

        // effects
        _dropFirst(parts, ripe);
        position.unbonding -= amount.toUint128();
        total -= amount;
        emit Withdrawn(node, msg.sender, amount);

        // interactions
        _token.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IStakeVault
    function seize(bytes32 submission, address node, uint256 amount) external onlyCourt {
        // checks
        if (_escrows[submission].node != address(0)) revert EscrowTaken(submission);
        Position storage position = _positions[node];
        uint256 slashable = uint256(position.stake) + position.unbonding;
        if (amount > slashable) revert StakeTooSmall(node, slashable, amount);

        // effects
        uint256 fromStake = Math.min(amount, position.stake);
        position.stake -= fromStake.toUint128();
        position.unbonding -= (amount - fromStake).toUint128();
        position.escrow += amount.toUint128();
        _takeUnbonding(_unbondings[node], amount - fromStake);
        _escrows[submission] = Escrow(node, amount.toUint128());
        emit Seized(submission, node, amount);
    }

    /// @inheritdoc IStakeVault
    function restore(bytes32 submission) external onlyCourt {
        Escrow memory held = _endEscrow(submission);
        _positions[held.node].stake += held.amount;
        emit Restored(submission, held.node, held.amount);
    }

    /// @inheritdoc IStakeVault
    function forfeit(bytes32 submission, address to, uint256 bounty) external onlyCourt {
        Escrow memory held = _endEscrow(submission);
        if (bounty > held.amount) revert BountyOverEscrow(submission, held.amount, bounty);
        total -= held.amount;
        emit Forfeited(submission, held.node, held.amount, to);
        _token.safeTransfer(to, held.amount - bounty);
        if (bounty != 0) _token.safeTransfer(court, bounty);
    }

    /// @inheritdoc IStakeVault
    function token() external view returns (address) {
        return address(_token);
    }

    /// @inheritdoc IStakeVault
    function positionOf(address node) external view returns (Position memory) {
        return _positions[node];
    }

    /// @inheritdoc IStakeVault
    function unbondingsOf(address node) external view returns (Unbonding[] memory) {
        return _unbondings[node];
    }

    /// @inheritdoc IStakeVault
    function slashableOf(address node) external view returns (uint256) {
        return uint256(_positions[node].stake) + _positions[node].unbonding;
    }

    /// @inheritdoc IStakeVault
    function escrowOf(bytes32 submission) external view returns (Escrow memory) {
        return _escrows[submission];
    }

    function _deposit(address node, uint256 amount) private {
        // checks
        if (amount == 0) revert AmountMissing();
        if (msg.sender == node && _positions[node].owner != node) _bind(node, node);
        Position storage position = _owned(node);

        // effects
        position.stake += amount.toUint128();
        total += amount;
        emit Deposited(node, msg.sender, amount);

        // interactions
        _token.take(amount);
    }

    /// @dev A node changes hands only when nothing of the last owner is left in it.
    function _bind(address node, address owner) private {
        Position storage position = _positions[node];
        bool isEmpty = position.stake == 0 && position.unbonding == 0 && position.escrow == 0;
        if (!isEmpty) revert NodeTaken(node, position.owner);
        position.owner = owner;
        position.boundAt = block.timestamp.toUint48();
        emit Bound(node, owner);
    }

    function _endEscrow(bytes32 submission) private returns (Escrow memory held) {
        held = _escrows[submission];
        if (held.node == address(0)) revert EscrowUnknown(submission);
        delete _escrows[submission];
        _positions[held.node].escrow -= held.amount;
    }

    /// @dev Oldest first, like the log: what was asked back first is the most likely to be of the time of the deed.
    function _takeUnbonding(Unbonding[] storage parts, uint256 missing) private {
        uint256 emptied = 0;
        while (missing > 0) {
            uint256 taken = Math.min(missing, parts[emptied].amount);
            missing -= taken;
            if (taken == parts[emptied].amount) emptied++;
            else parts[emptied].amount -= taken.toUint128();
        }
        _dropFirst(parts, emptied);
    }

    function _dropFirst(Unbonding[] storage parts, uint256 count) private {
        if (count == 0) return;
        for (uint256 i = count; i < parts.length; i++) {
            parts[i - count] = parts[i];
        }
        for (uint256 i = 0; i < count; i++) {
            parts.pop();
        }
    }

    function _owned(address node) private view returns (Position storage position) {
        position = _positions[node];
        if (position.owner == address(0)) revert NodeNotBound(node);
        if (position.owner != msg.sender) revert NotOwner(msg.sender, position.owner);
    }
}
