// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Money for a run's contributors
/// @notice Anyone funds a run. Once per epoch the operator promises: one Merkle root over what each account has earned in all since the
/// run began. Leaves are OpenZeppelin's: keccak256(keccak256(abi.encode(account, cumulative))), pairs hashed in sorted order.
/// A promise is bound by the money that is there, by the budget of the terms, and by a head of the anchored log. Until it matures, a
/// quorum of staked owners makes it void: whoever replays the log up to that head knows the root, and the chain does not.
interface IRewardPool {
    struct Pool {
        uint128 held; // token units inside
        uint128 claimed; // paid out so far
        uint128 promised; // in all, claimed included; the newest root's total
        uint128 funded; // by funders who have not taken their part back
        uint64 epoch; // number of the newest root; the first is 1
        uint48 promisedAt; // when it came; the run's creation before the first
        uint128 forfeited; // that slashes brought: for contributors, and never for a funder
        bool abandoned; // a funder has left because the operator was gone
    }

    struct Promise {
        bytes32 root;
        uint128 total;
        uint48 maturesAt;
        uint64 headSize; // of the log it was computed from
        uint8 voids; // roots in its place that were void before it
    }

    event Funded(bytes32 indexed run, address indexed funder, uint256 amount);
    event ForfeitReceived(bytes32 indexed run, uint256 amount);
    event Promised(
        bytes32 indexed run, uint64 indexed epoch, bytes32 root, uint256 total, uint64 headSize, uint48 maturesAt
    );
    event Challenged(
        bytes32 indexed run, uint64 indexed epoch, bytes32 root, address indexed node, address owner, uint8 votes
    );
    /// @param last number of the newest root, which is void too, like all that came after this one
    event RootVoided(bytes32 indexed run, uint64 indexed epoch, bytes32 root, uint64 headSize, uint64 last);
    event Claimed(bytes32 indexed run, address indexed account, uint256 amount, uint256 cumulative);
    event Reclaimed(bytes32 indexed run, address indexed funder, uint256 amount);
    event RestBurned(bytes32 indexed run, uint256 amount);
    event RunAbandoned(bytes32 indexed run);

    error NotCourt(address caller, address court);
    error AmountMissing();
    error RunIsOver(bytes32 run);
    error RunNotOver(bytes32 run);
    error WrongEpoch(uint64 epoch, uint64 next);
    error EpochTooSoon(uint256 now_, uint256 earliest);
    error TotalFell(uint256 total, uint256 promised);
    error OverBudget(uint256 increase, uint256 budget);
    /// @notice The pool would promise more than it holds.
    error Insolvent(uint256 owed, uint256 held);
    error HeadNotNewest(uint64 headSize, uint64 newest);
    error EpochUnknown(bytes32 run, uint64 epoch);
    error NotMatured(uint64 epoch, uint48 maturesAt);
    error PromiseVoid(uint64 epoch, uint48 frozenAt);
    /// @notice A quorum has said that the log up to this head gives another root.
    error RootVoid(uint64 epoch, uint64 headSize, bytes32 root);
    error RootDiffers(uint64 epoch, bytes32 root, bytes32 challenged);
    error ChallengeTooLate(uint64 epoch, uint48 maturesAt);
    error NotChallenger(address caller, address node, address owner);
    error BadProof(address account, uint256 cumulative);
    error PromiseExceeded(uint256 claimed, uint256 total);
    error NothingFunded(address caller);
    error FundersLeft(uint256 funded);

    /// @notice Anyone: money for a run's contributors.
    function fund(bytes32 run, uint256 amount) external;
    function fundWithPermit(bytes32 run, uint256 amount, uint256 deadline, uint8 v, bytes32 r, bytes32 s) external;

    /// @notice Court: slashed stake has arrived. It belongs to the run's contributors, never to a judge.
    function receiveForfeit(bytes32 run, uint256 amount) external;

    /// @notice Operator: the next epoch's root. `total` is the sum of all leaves; `headSize` is that of the newest anchored head. A root in the
    /// place of one that was challenged takes the number again, and twice as long to mature, up to the unbonding delay.
    function postRoot(bytes32 run, uint64 epoch, uint64 headSize, bytes32 root, uint256 total) external;

    /// @notice A staked node or its owner, before the root matures: the log with this head gives another root. Each owner counts once. At the
    /// quorum of the terms the root is void, with all that came after it; what has matured before it stays. The judges' rules are the court's.
    /// @param headRoot of the anchored head that the root names: the log that the caller has replayed
    function challenge(bytes32 run, uint64 epoch, bytes32 root, bytes32 headRoot, address node) external;

    /// @notice Anyone, for an account: pay what a matured root says and was not paid yet. Harmless twice: then it pays 0.
    function claim(bytes32 run, uint64 epoch, address account, uint256 cumulative, bytes32[] calldata proof)
        external
        returns (uint256 amount);

    /// @notice Funder, once the run is over or its operator gone, which ends it: my part of what was funded and is not promised. What is promised
    /// is paid from funded money first, so nobody gets more than was put in, and no slash pays a funder.
    function reclaim(bytes32 run) external returns (uint256 amount);

    /// @notice Anyone, when the run is over and no funder is left: burn what slashes left behind.
    function burnRest(bytes32 run) external returns (uint256 amount);

    function token() external view returns (address);
    function poolOf(bytes32 run) external view returns (Pool memory);
    /// @notice Empty for a root that is void.
    function promiseOf(bytes32 run, uint64 epoch) external view returns (Promise memory);
    function claimedBy(bytes32 run, address account) external view returns (uint256);
    function fundedBy(bytes32 run, address funder) external view returns (uint256);
    /// @notice What challenges are about: this root, for the log up to this head.
    function statementOf(bytes32 run, uint64 headSize, bytes32 root) external pure returns (bytes32);
    function votesAgainst(bytes32 statement) external view returns (uint8);
    function hasChallenged(bytes32 statement, address owner) external view returns (bool);
    /// @notice Total of the newest root that has matured, and that nobody can void any more.
    function maturedOf(bytes32 run) external view returns (uint256);
    /// @notice Promised in all, without promises that a freeze made void.
    function validPromised(bytes32 run) external view returns (uint256);
    /// @notice Whether nothing more can be promised: closed for one unbonding delay, frozen, or left by a funder as abandoned.
    function isOver(bytes32 run) external view returns (bool);
    /// @notice Whether no promise has matured for so long that funders need not wait for the operator any more.
    function isAbandoned(bytes32 run) external view returns (bool);
}
