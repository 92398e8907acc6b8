// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The runs of one network and the terms that everybody in them is held to
/// @notice Whoever stakes agrees to these terms. They change only with a notice that is as long as stake takes to leave,
/// so nobody is ever held to terms he could not walk away from.
interface IRunRegistry {
    /// @notice Whether a run proposes slashes and promises payouts. Closed is for good.
    enum RunStatus {
        None,
        Active,
        Paused,
        Closed
    }

    /// @notice What the chain holds a run to. Amounts are in the token's smallest unit, times in seconds.
    struct Terms {
        uint128 stakeMin; // least stake behind each node, worker or validator
        uint128 slashAmount; // taken by one slash, as far as there is stake; at most stakeMin
        uint128 slashPerDay; // most that all slashes and penalties of the run take in one day (UTC)
        uint128 validatorSlash; // taken by one penalty of a validator, as far as there is stake; at most stakeMin
        uint128 appealBond; // comes back if the slash is overturned
        uint128 epochBudget; // most that payouts promise per epoch
        uint32 epochTime; // least time between two payout roots
        uint32 payoutDelay; // from a payout root to its first claim: the time to challenge it, or to show a forked log
        uint32 slashWindow; // from the anchor of a SlashProposed entry to its proposal here
        uint32 appealWindow; // from a proposal to the last appeal
        uint32 judgementWindow; // from an appeal to the refund, if nobody has decided
        uint32 judgeAge; // how long a judge's node was bound to its owner before the anchor that its verdict rests on
        uint8 quorum; // verdicts that a slash, and the decision of an appeal, need
        bool slashToPool; // slashed stake goes to the run's pool; else it is burned
        uint16 bountyShare; // of a slash that follows a finding, for the finder; in ten-thousandths
    }

    struct Run {
        address headSigner; // secp256k1 key of the log: its EIP-712 tree heads bind it
        RunStatus status;
        uint40 createdAt;
        uint40 closedAt;
        string name; // as in the log
    }

    event RunCreated(bytes32 indexed run, string name, address indexed headSigner);
    event TermsSet(bytes32 indexed run, uint48 startsAt, Terms terms);
    event StatusSet(bytes32 indexed run, RunStatus status);

    error NotOperator(address caller, address operator);
    error BadName(string name);
    error RunExists(bytes32 run);
    error RunUnknown(bytes32 run);
    error RunNotActive(bytes32 run, RunStatus status);
    error StatusRefused(bytes32 run, RunStatus from, RunStatus to);
    error HeadSignerMissing();
    error DelayMissing();
    error OperatorMissing();
    /// @param earliest of a change announced in this block, or of one after the last announced
    error TermsTooSoon(bytes32 run, uint48 startsAt, uint48 earliest);
    error QuorumOutOfRange(uint8 quorum, uint8 max);
    /// @param slashAmount of a worker's slash or of a validator's penalty
    error SlashOverStake(uint128 slashAmount, uint128 stakeMin);
    error ShareOutOfRange(uint16 share, uint16 max);
    error DayUnderSlash(uint128 slashPerDay, uint128 slashAmount);
    /// @notice The windows must fit into the unbonding delay, or unbonding could outrun a slash. So must the payout delay: a run without a
    /// matured root for several unbonding delays counts as abandoned.
    error WindowsOverDelay(uint256 windows, uint48 unbondingDelay);
    error TimeMissing();
    error NoTermsAt(bytes32 run, uint48 time);

    /// @notice The network's coordinator: author of the log's coordinator entries. Never changes.
    function operator() external view returns (address);

    /// @notice Name of the network, as in the log.
    function network() external view returns (string memory);

    /// @notice How long stake stays slashable after it was asked back, and the notice for new terms.
    function unbondingDelay() external view returns (uint48);

    /// @notice Operator: a run begins. `run` is keccak256 of its name, as EIP-712 hashes it in receipts.
    function createRun(string calldata name, address headSigner, Terms calldata terms) external returns (bytes32 run);

    /// @notice Operator: announce terms. They start at least one unbonding delay from now, and after all announced before.
    function setTerms(bytes32 run, uint48 startsAt, Terms calldata terms) external;

    /// @notice Operator: pause (Paused), go on (Active) or end (Closed) a run.
    function setStatus(bytes32 run, RunStatus status) external;

    /// @notice The run; reverts where there is none.
    function runOf(bytes32 run) external view returns (Run memory);

    /// @notice Terms in force at a time.
    function termsAt(bytes32 run, uint48 time) external view returns (Terms memory);

    /// @notice What others ask most. `overAt` is when a closed run's pool is over: one unbonding delay after it closed; 0 while it is not.
    function statusOf(bytes32 run) external view returns (RunStatus status, uint48 createdAt, uint48 overAt);

    /// @notice The key whose tree heads count for the run.
    function headSignerOf(bytes32 run) external view returns (address);
}
