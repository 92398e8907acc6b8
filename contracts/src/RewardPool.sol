// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {ICourt} from "./interfaces/ICourt.sol";
import {ILogAnchor} from "./interfaces/ILogAnchor.sol";
import {IRewardPool} from "./interfaces/IRewardPool.sol";
import {IRunRegistry} from "./interfaces/IRunRegistry.sol";
import {IStakeVault} from "./interfaces/IStakeVault.sol";
import {Judges} from "./Judges.sol";
import {TokenFlow} from "./TokenFlow.sol";

/// @title Holds the money of runs; see IRewardPool
contract RewardPool is IRewardPool {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;
    using TokenFlow for IERC20;

    /// @notice Unbonding delays without a matured root after which a run counts as abandoned.
    uint256 public constant ABANDONED_DELAYS = 4;
    /// @notice Most times that a delay is doubled.
    uint8 public constant DOUBLINGS_MAX = 16;

    address public immutable court;
    IRunRegistry public immutable registry;
    ILogAnchor public immutable logAnchor;
    IStakeVault public immutable vault;

    /// @notice Sum of what all runs hold.
    uint256 public held;
    /// @inheritdoc IRewardPool
    mapping(bytes32 run => mapping(address account => uint256)) public claimedBy;
    /// @inheritdoc IRewardPool
    mapping(bytes32 run => mapping(address funder => uint256)) public fundedBy;
    /// @inheritdoc IRewardPool
    mapping(bytes32 statement => uint8) public votesAgainst;
    /// @inheritdoc IRewardPool
    mapping(bytes32 statement => mapping(address owner => bool)) public hasChallenged;

    IERC20 private immutable _token;
    mapping(bytes32 run => Pool) private _pools;
    /// @dev Those up to the pool's epoch stand. One beyond it is void, and kept until the next root of its number replaces it.
    mapping(bytes32 run => mapping(uint64 epoch => Promise)) private _promises;

    /// @dev The court makes its own pool; see StakeVault.
    constructor(IERC20 token_, IRunRegistry registry_, ILogAnchor logAnchor_, IStakeVault vault_) {
        _token = token_;
        court = msg.sender;
        registry = registry_;
        logAnchor = logAnchor_;
        vault = vault_;
    }

    /// @inheritdoc IRewardPool
    function fund(bytes32 run, uint256 amount) external {
        _fund(run, amount);
    }

    /// @inheritdoc IRewardPool
    function fundWithPermit(bytes32 run, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external {
        _token.permit(amount, deadline, v, r, s);
        _fund(run, amount);
    }

    /// @inheritdoc IRewardPool
    function receiveForfeit(bytes32 run, uint256 amount) external {
        if (msg.sender != court) revert NotCourt(msg.sender, court);
        uint256 balance = _token.balanceOf(address(this));
        if (balance < held + amount) revert Insolvent(held + amount, balance);
        _pools[run].held += amount.toUint128();
        _pools[run].forfeited += amount.toUint128();
        held += amount;
        emit ForfeitReceived(run, amount);
    }

    /// @inheritdoc IRewardPool
    function postRoot(bytes32 run, uint64 epoch, uint64 headSize, bytes32 root, uint256 total) external {
        // checks
        if (msg.sender != registry.operator()) revert IRunRegistry.NotOperator(msg.sender, registry.operator());
        (IRunRegistry.RunStatus status, uint48 createdAt,) = registry.statusOf(run);
        if (status == IRunRegistry.RunStatus.Paused) revert IRunRegistry.RunNotActive(run, status);
        if (isOver(run)) revert RunIsOver(run);
        Pool storage pool = _pools[run];
        if (epoch != pool.epoch + 1) revert WrongEpoch(epoch, pool.epoch + 1);
        uint64 newest = logAnchor.latestSize(run);
        if (newest == 0 || headSize != newest) revert HeadNotNewest(headSize, newest);
        IRunRegistry.Terms memory terms = registry.termsAt(run, block.timestamp.toUint48());
        _checkTotal(pool, epoch == 1 ? createdAt : pool.promisedAt, total, terms);
        if (votesAgainst[statementOf(run, headSize, root)] >= terms.quorum) revert RootVoid(epoch, headSize, root);

        // effects
        (uint48 maturesAt, uint8 voids) = _delayed(run, epoch, terms.payoutDelay);
        pool.promised = total.toUint128();
        pool.epoch = epoch;
        pool.promisedAt = block.timestamp.toUint48();
        _promises[run][epoch] = Promise(root, total.toUint128(), maturesAt, headSize, voids);
        emit Promised(run, epoch, root, total, headSize, maturesAt);
    }

    /// @inheritdoc IRewardPool
    function challenge(bytes32 run, uint64 epoch, bytes32 root, bytes32 headRoot, address node) external {
        // checks
        Promise memory word = promiseOf(run, epoch);
        if (word.maturesAt == 0) revert EpochUnknown(run, epoch);
        if (word.root != root) revert RootDiffers(epoch, word.root, root);
        if (block.timestamp >= word.maturesAt) revert ChallengeTooLate(epoch, word.maturesAt);
        uint48 anchoredAt = logAnchor.headAt(run, word.headSize, headRoot).anchoredAt;
        IRunRegistry.Terms memory terms = registry.termsAt(run, block.timestamp.toUint48());
        address owner = Judges.requireFit(vault, node, terms, anchoredAt);
        if (msg.sender != owner && msg.sender != node) revert NotChallenger(msg.sender, node, owner);
        bytes32 statement = statementOf(run, word.headSize, root);
        if (hasChallenged[statement][owner]) revert ICourt.OwnerTwice(owner);

        // effects
        hasChallenged[statement][owner] = true;
        uint8 votes = ++votesAgainst[statement];
        emit Challenged(run, epoch, root, node, owner, votes);
        if (votes >= terms.quorum) {
            Pool storage pool = _pools[run];
            emit RootVoided(run, epoch, root, word.headSize, pool.epoch);
            pool.epoch = epoch - 1;
            pool.promised = _promises[run][epoch - 1].total;
        }
    }

    /// @inheritdoc IRewardPool
    function claim(bytes32 run, uint64 epoch, address account, uint256 cumulative, bytes32[] calldata proof)
        external
        returns (uint256 amount)
    {
        // checks
        Promise memory word = promiseOf(run, epoch);
        uint48 frozenAt = _checkClaimable(run, epoch, word.maturesAt);
        bytes32 leaf = keccak256(bytes.concat(keccak256(abi.encode(account, cumulative))));
        if (!MerkleProof.verifyCalldata(proof, word.root, leaf)) revert BadProof(account, cumulative);
        uint256 paid = claimedBy[run][account];
        if (cumulative <= paid) return 0;
        amount = cumulative - paid;
        Pool storage pool = _pools[run];
        // A root over more than its total must not be paid from what is not promised.
        uint256 matured = _maturedBy(run, frozenAt == 0 ? block.timestamp : frozenAt).total;
        if (pool.claimed + amount > matured) revert PromiseExceeded(pool.claimed + amount, matured);

        // effects
        claimedBy[run][account] = cumulative;
        pool.claimed += amount.toUint128();
        pool.held -= amount.toUint128();
        held -= amount;
        emit Claimed(run, account, amount, cumulative);

        // interactions
        _token.safeTransfer(account, amount);
    }

    /// @inheritdoc IRewardPool
    function reclaim(bytes32 run) external returns (uint256 amount) {
        // checks
        bool isLeft = !isOver(run);
        if (isLeft && !isAbandoned(run)) revert RunNotOver(run);
        uint256 mine = fundedBy[run][msg.sender];
        if (mine == 0) revert NothingFunded(msg.sender);
        Pool storage pool = _pools[run];
        // By what each put in, of what is left: so the last one takes the remainders too.
        amount = Math.mulDiv(Math.saturatingSub(_rest(run), pool.forfeited), mine, pool.funded);

        // effects
        if (isLeft) {
            pool.abandoned = true;
            emit RunAbandoned(run);
        }
        delete fundedBy[run][msg.sender];
        pool.funded -= mine.toUint128();
        pool.held -= amount.toUint128();
        held -= amount;
        emit Reclaimed(run, msg.sender, amount);

        // interactions
        _token.safeTransfer(msg.sender, amount);
    }

    /// @inheritdoc IRewardPool
    function burnRest(bytes32 run) external returns (uint256 amount) {
        if (!isOver(run)) revert RunNotOver(run);
        Pool storage pool = _pools[run];
        if (pool.funded != 0) revert FundersLeft(pool.funded);
        amount = _rest(run);
        // slither-disable-next-line incorrect-equality
        if (amount == 0) revert AmountMissing();
        pool.held -= amount.toUint128();
        held -= amount;
        emit RestBurned(run, amount);
        _token.safeTransfer(TokenFlow.BURNED, amount);
    }

    /// @inheritdoc IRewardPool
    function token() external view returns (address) {
        return address(_token);
    }

    /// @inheritdoc IRewardPool
    function poolOf(bytes32 run) external view returns (Pool memory) {
        return _pools[run];
    }

    /// @inheritdoc IRewardPool
    function maturedOf(bytes32 run) external view returns (uint256) {
        uint48 frozenAt = logAnchor.frozenAt(run);
        return _maturedBy(run, frozenAt == 0 ? block.timestamp : frozenAt).total;
    }

    /// @inheritdoc IRewardPool
    function promiseOf(bytes32 run, uint64 epoch) public view returns (Promise memory word) {
        if (epoch <= _pools[run].epoch) word = _promises[run][epoch];
    }

    /// @inheritdoc IRewardPool
    function validPromised(bytes32 run) public view returns (uint256) {
        uint48 frozenAt = logAnchor.frozenAt(run);
        return frozenAt == 0 ? _pools[run].promised : _maturedBy(run, frozenAt).total;
    }

    /// @inheritdoc IRewardPool
    function isOver(bytes32 run) public view returns (bool) {
        (,, uint48 overAt) = registry.statusOf(run);
        bool isClosed = overAt != 0 && block.timestamp >= overAt;
        return isClosed || _pools[run].abandoned || logAnchor.frozenAt(run) != 0;
    }

    /// @inheritdoc IRewardPool
    function isAbandoned(bytes32 run) public view returns (bool) {
        (, uint48 createdAt,) = registry.statusOf(run);
        uint256 last = Math.max(createdAt, _maturedBy(run, block.timestamp).maturesAt);
        return block.timestamp >= last + ABANDONED_DELAYS * registry.unbondingDelay();
    }

    /// @inheritdoc IRewardPool
    function statementOf(bytes32 run, uint64 headSize, bytes32 root) public pure returns (bytes32) {
        return keccak256(abi.encode(run, headSize, root));
    }

    function _fund(bytes32 run, uint256 amount) private {
        if (amount == 0) revert AmountMissing();
        if (isOver(run)) revert RunIsOver(run);
        fundedBy[run][msg.sender] += amount;
        _pools[run].funded += amount.toUint128();
        _pools[run].held += amount.toUint128();
        held += amount;
        emit Funded(run, msg.sender, amount);
        _token.take(amount);
    }

    function _checkTotal(Pool storage pool, uint48 since, uint256 total, IRunRegistry.Terms memory terms) private view {
        // Whole epochs only, so dividing first is meant.
        // slither-disable-next-line divide-before-multiply
        uint256 epochs = (block.timestamp - since) / terms.epochTime;
        // slither-disable-next-line incorrect-equality
        if (epochs == 0) revert EpochTooSoon(block.timestamp, uint256(since) + terms.epochTime);
        if (total < pool.promised) revert TotalFell(total, pool.promised);
        // An epoch that was missed, because the chain was down, keeps its budget.
        uint256 budget = epochs * terms.epochBudget;
        if (total - pool.promised > budget) revert OverBudget(total - pool.promised, budget);
        if (total - pool.claimed > pool.held) revert Insolvent(total - pool.claimed, pool.held);
    }

    function _checkClaimable(bytes32 run, uint64 epoch, uint48 maturesAt) private view returns (uint48 frozenAt) {
        if (maturesAt == 0) revert EpochUnknown(run, epoch);
        frozenAt = logAnchor.frozenAt(run);
        if (frozenAt != 0 && maturesAt > frozenAt) revert PromiseVoid(epoch, frozenAt);
        if (block.timestamp < maturesAt) revert NotMatured(epoch, maturesAt);
    }

    /// @dev When a root that comes now matures, and how many of its number were void before. Each void doubles the delay, so that
    /// neither a wrong root nor a wrong challenge can be repeated at the pace of the first.
    function _delayed(bytes32 run, uint64 epoch, uint256 payoutDelay) private view returns (uint48, uint8 voids) {
        Promise storage before = _promises[run][epoch];
        Promise storage last = _promises[run][epoch - 1];
        if (before.maturesAt != 0) voids = before.voids + 1;
        if (last.maturesAt > block.timestamp && last.voids > voids) voids = last.voids;
        if (voids > DOUBLINGS_MAX) voids = DOUBLINGS_MAX;
        uint256 delay = Math.min(payoutDelay << voids, registry.unbondingDelay());
        // Never before the root before it: a shorter delay does not let a promise overtake.
        return (Math.max(block.timestamp + delay, last.maturesAt).toUint48(), voids);
    }

    /// @dev The last promise that had matured by then. Promises mature in their order, so half of them is left out at a time.
    function _maturedBy(bytes32 run, uint256 time) private view returns (Promise storage) {
        uint64 low = 0;
        uint64 high = _pools[run].epoch;
        while (low < high) {
            uint64 middle = high - (high - low) / 2;
            if (_promises[run][middle].maturesAt <= time) low = middle;
            else high = middle - 1;
        }
        return _promises[run][low];
    }

    /// @dev What is inside and promised to nobody.
    function _rest(bytes32 run) private view returns (uint256) {
        return _pools[run].held + _pools[run].claimed - validPromised(run);
    }
}
