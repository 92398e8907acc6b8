// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Slashes: proposed with proof, appealed with a bond, decided by others, ended by anyone
/// @notice This contract is the network's EIP-712 domain (`NetworkCreated.contract`): workers and validators sign their
/// receipts for it, in the same form in which the log carries them:
/// `SubmissionReceipt(string network,string run,uint64 step,uint64 lease,address node,bytes32 checkpointRoot,bytes32 fileDigest,bytes32 rolloutRoot)`
/// `VerdictReceipt(string network,string run,bytes32 submission,address validator,uint64 outcome,bytes32 evidence)`
/// A slash is named by its submission: the EIP-712 struct hash of the worker's receipt, as in the log.
/// A penalty is the slash of a validator whose verdict was refuted. It is named by its submission and validator, see `penaltyOf`.
interface ICourt {
    enum SlashStatus {
        None,
        Open,
        Appealed,
        Executed,
        Refunded
    }

    /// @notice A worker's SubmissionReceipt without the names, which follow from the run.
    struct Receipt {
        uint64 step;
        uint64 lease;
        address node;
        bytes32 checkpointRoot;
        bytes32 fileDigest;
        bytes32 rolloutRoot;
        bytes signature;
    }

    /// @notice A validator's VerdictReceipt without names and submission. Outcome: 0 accept, 1 invalid, 2 fraudulent.
    struct Verdict {
        address validator;
        uint64 outcome;
        bytes32 evidence;
        bytes signature;
    }

    /// @notice An entry that the coordinator wrote into the log, and where it stands.
    struct LoggedEntry {
        bytes leaf; // the log's record, as in a mirror
        uint32 offset; // where in the leaf the entry's last fields begin; see LogEntry.sol
        uint64 issuedAtMs; // of the payload
        uint64 expiresAtMs; // of the payload
        uint64 index; // of the leaf
        uint64 size; // of the first anchored head that covers it
        bytes32[] proof; // inclusion
    }

    /// @notice One slash or penalty. Its terms are those in force when the log's SlashProposed or ValidatorScored entry was anchored.
    struct Slash {
        bytes32 run;
        address node;
        SlashStatus status;
        uint48 appealUntil;
        bool isPenalty;
        uint8 refuted; // outcome of the verdict that a penalty is for
        address appellant; // 0 until it is appealed
        uint48 judgeUntil; // the log's decision has to be shown before; then the slash is refunded
        uint48 anchoredAt;
        bytes32 judges; // keccak256 of the packed validators, then owners, whose verdicts it rests on; 0 of a penalty
    }

    /// @param judges the validators in the order given, then the owners behind them; `judge` wants the same list
    event SlashProposed(
        bytes32 indexed submission,
        bytes32 indexed run,
        address indexed node,
        uint256 amount,
        bytes32 evidence,
        uint48 appealUntil,
        address[] judges
    );
    event Appealed(bytes32 indexed submission, address indexed appellant, uint256 bond, uint48 judgeUntil);
    /// @param penalty its name in `appeal`, `refund`, `slashOf` and the events that follow
    event PenaltyProposed(
        bytes32 indexed penalty,
        bytes32 indexed run,
        address indexed validator,
        bytes32 submission,
        uint256 amount,
        uint48 appealUntil
    );
    /// @param amount all that was in escrow; a bounty is part of it
    event SlashExecuted(bytes32 indexed submission, uint256 amount, uint256 bond, address to);
    event BountyGranted(bytes32 indexed submission, address indexed finder, uint256 amount);
    event BountyClaimed(address indexed finder, uint256 amount);
    event SlashOverturned(bytes32 indexed submission);

    error SlashExists(bytes32 submission, SlashStatus status);
    error WrongStatus(bytes32 submission, SlashStatus status);
    error NotReceiptSigner(address signer, address node);
    error NotVerdictSigner(address signer, address validator);
    error TooFewVerdicts(uint256 verdicts, uint8 quorum);
    error VerdictsNotSorted(address validator);
    error WrongOutcome(address validator, uint64 outcome);
    error EvidenceUnsigned(bytes32 evidence);
    error JudgeStakeTooSmall(address validator, uint256 stake, uint256 stakeMin);
    error JudgeTooNew(address validator, uint48 boundAt, uint256 latest);
    error OwnerTwice(address owner);
    error JudgeAskedBefore(address validator);
    error JudgesDiffer(bytes32 submission);
    error NotInLeaf(uint256 offset);
    error NotFirstHead(uint64 index, uint64 size);
    error SlashTooLate(uint48 anchoredAt, uint256 until);
    error DayLimit(bytes32 run, uint256 day, uint256 taken, uint256 amount, uint256 max);
    error NothingToSlash(address node);
    error NotAccused(address caller, address node, address owner);
    error AppealTooLate(bytes32 submission, uint48 appealUntil);
    error AppealWindowOpen(bytes32 submission, uint48 appealUntil);
    error JudgementWindowOpen(bytes32 submission, uint48 judgeUntil);
    error JudgementTooLate(bytes32 submission, uint48 judgeUntil);
    error RunFrozen(bytes32 run);
    error PenaltyMissing(bytes32 submission, address validator);
    error NotPenalty(bytes32 submission);
    error NotSlash(bytes32 penalty);
    error NotRefuted(bytes32 penalty, uint8 refuted, uint64 outcome);
    error NothingToClaim(address finder);

    /// @notice Anyone: open a slash. Rests on the worker's receipt, fraudulent verdicts of a quorum (sorted by validator, no owner twice, none
    /// of the accused's owner), of which one names the evidence, and the coordinator's SlashProposed entry in the anchored log.
    /// The stake is in escrow from here on.
    function propose(
        bytes32 run,
        Receipt calldata receipt,
        Verdict[] calldata verdicts,
        bytes32 evidence,
        LoggedEntry calldata entry
    ) external returns (bytes32 submission);

    /// @notice The accused node or its owner, inside the window: look again. Takes the bond from the caller.
    function appeal(bytes32 submission) external;

    /// @notice Anyone, inside the judgement window: decide an appeal by a quorum of others. All fraudulent, with the log's SlashExecuted:
    /// the slash is executed. None fraudulent, with the log's SlashOverturned: it is refunded.
    /// @param judges the list in the slash's SlashProposed event
    /// @param bountyTo as for `execute`; not read where the slash is refunded
    function judge(
        bytes32 submission,
        address[] calldata judges,
        Verdict[] calldata verdicts,
        address bountyTo,
        LoggedEntry calldata entry
    ) external;

    /// @notice Anyone: the window is over, nobody appealed here, and the log says SlashExecuted. What others overturned in the log's own
    /// appeal can never be executed.
    /// @param bountyTo the finder's owner in the SlashExecuted entry, who gets `bountyShare` of the slash; 0 if the entry names none
    function execute(bytes32 submission, address bountyTo, LoggedEntry calldata entry) external;

    /// @notice Anyone: nobody appealed here, and the log says SlashOverturned. The stake goes back; it costs no bond.
    function overturn(bytes32 submission, LoggedEntry calldata entry) external;

    /// @notice Anyone: no decision was shown in time, or the log was shown to have told two histories. Stake and bond go back.
    function refund(bytes32 submission) external;

    /// @notice Anyone: open the penalty of a validator. Rests on its own signed verdict and the coordinator's ValidatorScored entry with a
    /// penalty in the anchored log. Each validator and submission once. The stake is in escrow from here on.
    /// @param penaltyNano as in the entry, more than 0; how much is taken follows from the terms
    function proposePenalty(
        bytes32 run,
        bytes32 submission,
        Verdict calldata verdict,
        uint64 penaltyNano,
        LoggedEntry calldata entry
    ) external returns (bytes32 penalty);

    /// @notice Anyone: the window is over and nobody appealed here. The log's entry is its last word already.
    function executePenalty(bytes32 penalty) external;

    /// @notice Anyone, inside the judgement window: the appeal of a penalty fails, because a quorum of others signed the opposite: all
    /// fraudulent where it accepted, or all accepted where it said fraudulent. Without one it is refunded.
    function judgePenalty(bytes32 submission, address validator, Verdict[] calldata verdicts) external;

    /// @notice Anyone, for the finder that is paid: everything granted so far.
    function claimBounty(address finder) external returns (uint256 amount);

    function penaltyOf(bytes32 submission, address validator) external pure returns (bytes32);
    /// @notice Bounty granted to an account and not claimed.
    function bountyOf(address finder) external view returns (uint256);
    /// @notice All bounties granted and not claimed. This contract holds them beside the bonds.
    function bounties() external view returns (uint256);
    function slashOf(bytes32 submission) external view returns (Slash memory);
    /// @notice Amount that slashes and penalties of a run have put into escrow on a day (days since 1970, UTC).
    function takenOn(bytes32 run, uint256 day) external view returns (uint256);
    /// @notice Bonds of open appeals. This contract holds them.
    function bonds() external view returns (uint256);
    function submissionOf(bytes32 run, Receipt calldata receipt) external view returns (bytes32);
    function token() external view returns (address);
    function vault() external view returns (address);
    function pool() external view returns (address);
    function registry() external view returns (address);
    function logAnchor() external view returns (address);
}
