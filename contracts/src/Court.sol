// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {ICourt} from "./interfaces/ICourt.sol";
import {ILogAnchor} from "./interfaces/ILogAnchor.sol";
import {IRunRegistry} from "./interfaces/IRunRegistry.sol";
import {Judges} from "./Judges.sol";
import {LogEntry} from "./LogEntry.sol";
import {RewardPool} from "./RewardPool.sol";
import {StakeVault} from "./StakeVault.sol";
import {TokenFlow} from "./TokenFlow.sol";

/// @title Decides slashes; see ICourt
contract Court is ICourt, EIP712 {
    using SafeCast for uint256;
    using SafeERC20 for IERC20;
    using TokenFlow for IERC20;
    using LogEntry for bytes;

    bytes32 public constant SUBMISSION_TYPEHASH = keccak256(
        "SubmissionReceipt(string network,string run,uint64 step,uint64 lease,address node,bytes32 checkpointRoot,bytes32 fileDigest,bytes32 rolloutRoot)"
    );
    bytes32 public constant VERDICT_TYPEHASH = keccak256(
        "VerdictReceipt(string network,string run,bytes32 submission,address validator,uint64 outcome,bytes32 evidence)"
    );
    /// @notice Number of the outcome in a VerdictReceipt that says: provably dishonest.
    uint64 public constant FRAUDULENT = 2;
    uint256 private constant BASIS_POINTS = 10_000;

    StakeVault private immutable _vault;
    RewardPool private immutable _pool;
    IRunRegistry private immutable _registry;
    ILogAnchor private immutable _logAnchor;
    IERC20 private immutable _token;
    bytes32 private immutable _network; // as EIP-712 hashes it

    /// @inheritdoc ICourt
    uint256 public bonds;
    /// @inheritdoc ICourt
    uint256 public bounties;
    /// @inheritdoc ICourt
    mapping(address finder => uint256) public bountyOf;
    /// @inheritdoc ICourt
    mapping(bytes32 run => mapping(uint256 day => uint256)) public takenOn;
    mapping(bytes32 submission => Slash) private _slashes;

    constructor(IERC20 token_, IRunRegistry registry_, ILogAnchor logAnchor_) EIP712("prime-swarm", "1") {
        _token = token_;
        _registry = registry_;
        _logAnchor = logAnchor_;
        _network = keccak256(bytes(registry_.network()));
        _vault = new StakeVault(token_, registry_.unbondingDelay());
        _pool = new RewardPool(token_, registry_, logAnchor_, _vault);
    }

    /// @inheritdoc ICourt
    function propose(
        bytes32 run,
        Receipt calldata receipt,
        Verdict[] calldata verdicts,
        bytes32 evidence,
        LoggedEntry calldata entry
    ) external returns (bytes32 submission) {
        // checks
        submission = _checkReceipt(run, receipt);
        LogEntry.Payload memory payload = _payload(run, entry);
        uint48 anchoredAt = _checkLogged(run, LogEntry.slashProposed(submission, evidence, payload), entry);
        IRunRegistry.Terms memory terms = _registry.termsAt(run, anchoredAt);
        _checkEvidence(verdicts, evidence);
        if (!_checkVerdicts(run, submission, verdicts)) {
            revert WrongOutcome(verdicts[0].validator, verdicts[0].outcome);
        }
        address[] memory judges = _checkJudges(receipt.node, verdicts, terms, anchoredAt);
        uint256 amount = _amountOf(receipt.node, terms.slashAmount);

        // effects
        Slash storage slash = _open(submission, run, receipt.node, anchoredAt, terms, amount);
        slash.judges = keccak256(abi.encodePacked(judges));
        emit SlashProposed(submission, run, receipt.node, amount, evidence, slash.appealUntil, judges);

        // interactions
        _vault.seize(submission, receipt.node, amount);
    }

    /// @inheritdoc ICourt
    function proposePenalty(
        bytes32 run,
        bytes32 submission,
        Verdict calldata verdict,
        uint64 penaltyNano,
        LoggedEntry calldata entry
    ) external returns (bytes32 penalty) {
        // checks
        address validator = verdict.validator;
        penalty = penaltyOf(submission, validator);
        _checkNew(run, penalty);
        if (penaltyNano == 0) revert PenaltyMissing(submission, validator);
        if (verdict.outcome > FRAUDULENT) revert WrongOutcome(validator, verdict.outcome);
        _checkSigned(run, submission, verdict);
        bytes memory expected = LogEntry.validatorScored(submission, validator, penaltyNano, _payload(run, entry));
        uint48 anchoredAt = _checkLogged(run, expected, entry);
        IRunRegistry.Terms memory terms = _registry.termsAt(run, anchoredAt);
        uint256 amount = _amountOf(validator, terms.validatorSlash);

        // effects
        Slash storage slash = _open(penalty, run, validator, anchoredAt, terms, amount);
        slash.isPenalty = true;
        slash.refuted = uint8(verdict.outcome);
        emit PenaltyProposed(penalty, run, validator, submission, amount, slash.appealUntil);

        // interactions
        _vault.seize(penalty, validator, amount);
    }

    /// @inheritdoc ICourt
    function appeal(bytes32 submission) external {
        // checks
        Slash storage slash = _expect(submission, SlashStatus.Open);
        address owner = _vault.positionOf(slash.node).owner;
        if (msg.sender != owner && msg.sender != slash.node) revert NotAccused(msg.sender, slash.node, owner);
        if (block.timestamp >= slash.appealUntil) revert AppealTooLate(submission, slash.appealUntil);
        IRunRegistry.Terms memory terms = _registry.termsAt(slash.run, slash.anchoredAt);

        // effects
        uint48 judgeUntil = (block.timestamp + terms.judgementWindow).toUint48();
        slash.status = SlashStatus.Appealed;
        slash.appellant = msg.sender;
        slash.judgeUntil = judgeUntil;
        bonds += terms.appealBond;
        emit Appealed(submission, msg.sender, terms.appealBond, judgeUntil);

        // interactions
        _token.take(terms.appealBond);
    }

    /// @inheritdoc ICourt
    function judge(
        bytes32 submission,
        address[] calldata judges,
        Verdict[] calldata verdicts,
        address bountyTo,
        LoggedEntry calldata entry
    ) external {
        Slash storage slash = _expect(submission, SlashStatus.Appealed);
        _checkInTime(submission, slash);
        if (keccak256(abi.encodePacked(judges)) != slash.judges) revert JudgesDiffer(submission);
        bytes32 run = slash.run;
        bool isFraudulent = _checkVerdicts(run, submission, verdicts);
        uint48 anchoredAt =
            isFraudulent ? _checkExecuted(run, submission, bountyTo, entry) : _checkOverturned(run, submission, entry);
        IRunRegistry.Terms memory terms = _registry.termsAt(run, slash.anchoredAt);
        _checkOthers(judges, _checkJudges(slash.node, verdicts, terms, anchoredAt));
        if (isFraudulent) _execute(submission, terms, bountyTo);
        else _refund(submission);
    }

    /// @inheritdoc ICourt
    function execute(bytes32 submission, address bountyTo, LoggedEntry calldata entry) external {
        Slash storage slash = _expect(submission, SlashStatus.Open);
        if (slash.isPenalty) revert NotSlash(submission);
        _checkUnappealed(submission, slash);
        _checkExecuted(slash.run, submission, bountyTo, entry);
        _execute(submission, _registry.termsAt(slash.run, slash.anchoredAt), bountyTo);
    }

    /// @inheritdoc ICourt
    function executePenalty(bytes32 penalty) external {
        Slash storage slash = _expect(penalty, SlashStatus.Open);
        if (!slash.isPenalty) revert NotPenalty(penalty);
        _checkUnappealed(penalty, slash);
        if (_logAnchor.frozenAt(slash.run) != 0) revert RunFrozen(slash.run);
        _execute(penalty, _registry.termsAt(slash.run, slash.anchoredAt), address(0));
    }

    /// @inheritdoc ICourt
    function judgePenalty(bytes32 submission, address validator, Verdict[] calldata verdicts) external {
        bytes32 penalty = penaltyOf(submission, validator);
        Slash storage slash = _expect(penalty, SlashStatus.Appealed);
        _checkInTime(penalty, slash);
        if (_logAnchor.frozenAt(slash.run) != 0) revert RunFrozen(slash.run);
        uint64 decided = _checkVerdicts(slash.run, submission, verdicts) ? FRAUDULENT : 0;
        for (uint256 i = 0; i < verdicts.length; i++) {
            bool isOpposite = verdicts[i].outcome == decided && decided + slash.refuted == FRAUDULENT;
            if (!isOpposite) revert NotRefuted(penalty, slash.refuted, verdicts[i].outcome);
        }
        IRunRegistry.Terms memory terms = _registry.termsAt(slash.run, slash.anchoredAt);
        _checkJudges(validator, verdicts, terms, slash.anchoredAt);
        _execute(penalty, terms, address(0));
    }

    /// @inheritdoc ICourt
    function claimBounty(address finder) external returns (uint256 amount) {
        amount = bountyOf[finder];
        // slither-disable-next-line incorrect-equality
        if (amount == 0) revert NothingToClaim(finder);
        bountyOf[finder] = 0;
        bounties -= amount;
        emit BountyClaimed(finder, amount);
        _token.safeTransfer(finder, amount);
    }

    /// @inheritdoc ICourt
    function overturn(bytes32 submission, LoggedEntry calldata entry) external {
        Slash storage slash = _expect(submission, SlashStatus.Open);
        if (slash.isPenalty) revert NotSlash(submission);
        _checkOverturned(slash.run, submission, entry);
        _refund(submission);
    }

    /// @inheritdoc ICourt
    function refund(bytes32 submission) external {
        Slash storage slash = _slashes[submission];
        bool isOpen = slash.status == SlashStatus.Open || slash.status == SlashStatus.Appealed;
        if (!isOpen) revert WrongStatus(submission, slash.status);
        // A log that told two histories convicts nobody.
        if (block.timestamp < slash.judgeUntil && _logAnchor.frozenAt(slash.run) == 0) {
            revert JudgementWindowOpen(submission, slash.judgeUntil);
        }
        _refund(submission);
    }

    /// @inheritdoc ICourt
    function slashOf(bytes32 submission) external view returns (Slash memory) {
        return _slashes[submission];
    }

    /// @inheritdoc ICourt
    function token() external view returns (address) {
        return address(_token);
    }

    /// @inheritdoc ICourt
    function vault() external view returns (address) {
        return address(_vault);
    }

    /// @inheritdoc ICourt
    function pool() external view returns (address) {
        return address(_pool);
    }

    /// @inheritdoc ICourt
    function registry() external view returns (address) {
        return address(_registry);
    }

    /// @inheritdoc ICourt
    function logAnchor() external view returns (address) {
        return address(_logAnchor);
    }

    /// @inheritdoc ICourt
    function penaltyOf(bytes32 submission, address validator) public pure returns (bytes32) {
        return keccak256(abi.encode(submission, validator));
    }

    /// @inheritdoc ICourt
    function submissionOf(bytes32 run, Receipt calldata receipt) public view returns (bytes32) {
        return keccak256(
            abi.encode(
                SUBMISSION_TYPEHASH,
                _network,
                run,
                receipt.step,
                receipt.lease,
                receipt.node,
                receipt.checkpointRoot,
                receipt.fileDigest,
                receipt.rolloutRoot
            )
        );
    }

    /// @dev The terms of the anchor apply, and the slash is in time for them.
    function _open(
        bytes32 submission,
        bytes32 run,
        address node,
        uint48 anchoredAt,
        IRunRegistry.Terms memory terms,
        uint256 amount
    ) private returns (Slash storage slash) {
        if (block.timestamp > uint256(anchoredAt) + terms.slashWindow) {
            revert SlashTooLate(anchoredAt, uint256(anchoredAt) + terms.slashWindow);
        }
        _countDay(run, amount, terms.slashPerDay);
        slash = _slashes[submission];
        slash.run = run;
        slash.node = node;
        slash.status = SlashStatus.Open;
        slash.appealUntil = (block.timestamp + terms.appealWindow).toUint48();
        // What the log decides without an appeal here may come as late as a proposal, after its own appeal and judgement.
        slash.judgeUntil = (uint256(slash.appealUntil) + terms.judgementWindow + terms.slashWindow).toUint48();
        slash.anchoredAt = anchoredAt;
    }

    function _amountOf(address node, uint256 max) private view returns (uint256 amount) {
        amount = Math.min(max, _vault.slashableOf(node));
        if (amount == 0) revert NothingToSlash(node);
    }

    /// @dev Stake and bond leave: to the run's pool while it can still pay anybody, else to nobody. Never to a judge. The finder's share
    /// stays here until it is claimed, so that a token that refuses the finder cannot hold up the slash.
    function _execute(bytes32 submission, IRunRegistry.Terms memory terms, address bountyTo) private {
        Slash storage slash = _slashes[submission];
        uint256 bond = slash.status == SlashStatus.Appealed ? terms.appealBond : 0;
        bool isPooled = terms.slashToPool && !_pool.isOver(slash.run);
        address to = isPooled ? address(_pool) : TokenFlow.BURNED;
        uint256 amount = _vault.escrowOf(submission).amount;
        uint256 bounty = bountyTo == address(0) ? 0 : amount * terms.bountyShare / BASIS_POINTS;
        slash.status = SlashStatus.Executed;
        bonds -= bond;
        emit SlashExecuted(submission, amount, bond, to);
        if (bounty != 0) {
            bounties += bounty;
            bountyOf[bountyTo] += bounty;
            emit BountyGranted(submission, bountyTo, bounty);
        }
        _vault.forfeit(submission, to, bounty);
        if (bond != 0) _token.safeTransfer(to, bond);
        if (isPooled) _pool.receiveForfeit(slash.run, amount - bounty + bond);
    }

    function _refund(bytes32 submission) private {
        Slash storage slash = _slashes[submission];
        bool isAppealed = slash.status == SlashStatus.Appealed;
        uint256 bond = isAppealed ? _registry.termsAt(slash.run, slash.anchoredAt).appealBond : 0;
        slash.status = SlashStatus.Refunded;
        bonds -= bond;
        emit SlashOverturned(submission);
        _vault.restore(submission);
        if (bond != 0) _token.safeTransfer(slash.appellant, bond);
    }

    /// @dev A cheat with many nodes must not empty the vault in a day, nor a wrong court.
    function _countDay(bytes32 run, uint256 amount, uint256 max) private {
        uint256 day = block.timestamp / 1 days;
        uint256 taken = takenOn[run][day];
        if (taken + amount > max) revert DayLimit(run, day, taken, amount, max);
        takenOn[run][day] = taken + amount;
    }

    /// @dev The worker signed this very work, for this network and run, and it was not brought before.
    function _checkReceipt(bytes32 run, Receipt calldata receipt) private view returns (bytes32 submission) {
        submission = submissionOf(run, receipt);
        address signer = ECDSA.recover(_hashTypedDataV4(submission), receipt.signature);
        if (signer != receipt.node) revert NotReceiptSigner(signer, receipt.node);
        _checkNew(run, submission);
    }

    function _checkNew(bytes32 run, bytes32 submission) private view {
        if (_slashes[submission].status != SlashStatus.None) {
            revert SlashExists(submission, _slashes[submission].status);
        }
        (IRunRegistry.RunStatus status,,) = _registry.statusOf(run);
        if (status == IRunRegistry.RunStatus.Paused) revert IRunRegistry.RunNotActive(run, status);
    }

    function _expect(bytes32 submission, SlashStatus status) private view returns (Slash storage slash) {
        slash = _slashes[submission];
        if (slash.status != status) revert WrongStatus(submission, slash.status);
    }

    function _checkInTime(bytes32 submission, Slash storage slash) private view {
        if (block.timestamp >= slash.judgeUntil) revert JudgementTooLate(submission, slash.judgeUntil);
    }

    function _checkUnappealed(bytes32 submission, Slash storage slash) private view {
        if (block.timestamp < slash.appealUntil) revert AppealWindowOpen(submission, slash.appealUntil);
        _checkInTime(submission, slash);
    }

    /// @dev The log has executed this slash, with that bounty; since when the chain knows it.
    function _checkExecuted(bytes32 run, bytes32 submission, address bountyTo, LoggedEntry calldata entry)
        private
        view
        returns (uint48)
    {
        return _checkLogged(run, LogEntry.slashExecuted(submission, bountyTo, _payload(run, entry)), entry);
    }

    /// @dev The log has overturned this slash; since when the chain knows it.
    function _checkOverturned(bytes32 run, bytes32 submission, LoggedEntry calldata entry)
        private
        view
        returns (uint48)
    {
        return _checkLogged(run, LogEntry.slashOverturned(submission, _payload(run, entry)), entry);
    }

    function _payload(bytes32 run, LoggedEntry calldata entry) private view returns (LogEntry.Payload memory) {
        return LogEntry.Payload({
            issuedAtMs: entry.issuedAtMs,
            expiresAtMs: entry.expiresAtMs,
            network: _registry.network(),
            run: _registry.runOf(run).name,
            sender: _registry.operator()
        });
    }

    /// @dev The coordinator wrote it, into a log that has told one history; since when the chain knows it.
    function _checkLogged(bytes32 run, bytes memory expected, LoggedEntry calldata entry)
        private
        view
        returns (uint48)
    {
        if (_logAnchor.frozenAt(run) != 0) revert RunFrozen(run);
        if (!expected.isIn(entry.leaf, entry.offset)) revert NotInLeaf(entry.offset);
        ILogAnchor.Head memory head = _logAnchor.requireInclusion(run, entry.size, entry.index, entry.leaf, entry.proof);
        if (entry.index < head.previous) revert NotFirstHead(entry.index, entry.size);
        return head.anchoredAt;
    }

    /// @dev Sorted, so each speaks once; signed; of one mind. Whether they say fraudulent.
    function _checkVerdicts(bytes32 run, bytes32 submission, Verdict[] calldata verdicts)
        private
        view
        returns (bool isFraudulent)
    {
        address last = address(0);
        isFraudulent = verdicts.length != 0 && verdicts[0].outcome == FRAUDULENT;
        for (uint256 i = 0; i < verdicts.length; i++) {
            Verdict calldata verdict = verdicts[i];
            if (verdict.validator <= last) revert VerdictsNotSorted(verdict.validator);
            last = verdict.validator;
            bool isKnown = verdict.outcome <= FRAUDULENT;
            if (!isKnown || (verdict.outcome == FRAUDULENT) != isFraudulent) {
                revert WrongOutcome(verdict.validator, verdict.outcome);
            }
            _checkSigned(run, submission, verdict);
        }
    }

    function _checkSigned(bytes32 run, bytes32 submission, Verdict calldata verdict) private view {
        address signer = ECDSA.recover(_verdictDigest(run, submission, verdict), verdict.signature);
        if (signer != verdict.validator) revert NotVerdictSigner(signer, verdict.validator);
    }

    function _verdictDigest(bytes32 run, bytes32 submission, Verdict calldata verdict) private view returns (bytes32) {
        return _hashTypedDataV4(
            keccak256(
                abi.encode(
                    VERDICT_TYPEHASH, _network, run, submission, verdict.validator, verdict.outcome, verdict.evidence
                )
            )
        );
    }

    /// @dev A quorum with something to lose, no owner twice, none of the accused's. Validators first, then their owners.
    function _checkJudges(
        address accused,
        Verdict[] calldata verdicts,
        IRunRegistry.Terms memory terms,
        uint48 anchoredAt
    ) private view returns (address[] memory judges) {
        uint256 count = verdicts.length;
        if (count < terms.quorum) revert TooFewVerdicts(count, terms.quorum);
        judges = new address[](2 * count);
        address accusedOwner = _vault.positionOf(accused).owner;
        for (uint256 i = 0; i < count; i++) {
            address validator = verdicts[i].validator;
            address owner = Judges.requireFit(_vault, validator, terms, anchoredAt);
            if (owner == accusedOwner) revert OwnerTwice(owner);
            for (uint256 j = 0; j < i; j++) {
                if (judges[count + j] == owner) revert OwnerTwice(owner);
            }
            judges[i] = validator;
            judges[count + i] = owner;
        }
    }

    function _checkEvidence(Verdict[] calldata verdicts, bytes32 evidence) private pure {
        for (uint256 i = 0; i < verdicts.length; i++) {
            if (verdicts[i].evidence == evidence) return;
        }
        revert EvidenceUnsigned(evidence);
    }

    /// @dev Nobody who spoke before, and nobody of an owner who did.
    function _checkOthers(address[] calldata before, address[] memory judges) private pure {
        for (uint256 i = 0; i < judges.length; i++) {
            for (uint256 j = 0; j < before.length; j++) {
                if (judges[i] == before[j]) revert JudgeAskedBefore(judges[i]);
            }
        }
    }
}
