// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {Checkpoints} from "@openzeppelin/contracts/utils/structs/Checkpoints.sol";

import {IRunRegistry} from "./interfaces/IRunRegistry.sol";

/// @title Keeps the runs and their terms; see IRunRegistry
contract RunRegistry is IRunRegistry {
    using Checkpoints for Checkpoints.Trace208;

    /// @notice Most verdicts a slash may need: the log draws no more validators at once.
    uint8 public constant QUORUM_MAX = 15;
    /// @notice The whole, in ten-thousandths.
    uint16 public constant BASIS_POINTS = 10_000;
    /// @notice Longest name of a network or run in the log.
    uint256 public constant NAME_BYTES_MAX = 40;

    /// @inheritdoc IRunRegistry
    address public immutable operator;
    /// @inheritdoc IRunRegistry
    uint48 public immutable unbondingDelay;
    /// @inheritdoc IRunRegistry
    string public network;

    mapping(bytes32 run => Run) private _runs;
    mapping(bytes32 run => Terms[]) private _terms;
    mapping(bytes32 run => Checkpoints.Trace208) private _starts; // start time to place in _terms

    modifier onlyOperator() {
        if (msg.sender != operator) revert NotOperator(msg.sender, operator);
        _;
    }

    constructor(string memory network_, address operator_, uint48 unbondingDelay_) {
        _checkName(network_);
        if (operator_ == address(0)) revert OperatorMissing();
        if (unbondingDelay_ == 0) revert DelayMissing();
        network = network_;
        operator = operator_;
        unbondingDelay = unbondingDelay_;
    }

    /// @inheritdoc IRunRegistry
    function createRun(string calldata name, address headSigner, Terms calldata terms)
        external
        onlyOperator
        returns (bytes32 run)
    {
        run = keccak256(bytes(name));
        _checkName(name);
        if (headSigner == address(0)) revert HeadSignerMissing();
        if (_runs[run].status != RunStatus.None) revert RunExists(run);
        _runs[run] = Run(headSigner, RunStatus.Active, SafeCast.toUint40(block.timestamp), 0, name);
        emit RunCreated(run, name, headSigner);
        _addTerms(run, _now(), terms);
    }

    /// @inheritdoc IRunRegistry
    function setTerms(bytes32 run, uint48 startsAt, Terms calldata terms) external onlyOperator {
        RunStatus status = _known(run).status;
        if (status == RunStatus.Closed) revert RunNotActive(run, status);
        (, uint48 last,) = _starts[run].latestCheckpoint();
        uint48 earliest = _now() + unbondingDelay;
        if (earliest <= last) earliest = last + 1;
        if (startsAt < earliest) revert TermsTooSoon(run, startsAt, earliest);
        _addTerms(run, startsAt, terms);
    }

    /// @inheritdoc IRunRegistry
    function setStatus(bytes32 run, RunStatus status) external onlyOperator {
        Run storage known = _known(run);
        if (known.status == RunStatus.Closed || status == RunStatus.None || status == known.status) {
            revert StatusRefused(run, known.status, status);
        }
        known.status = status;
        if (status == RunStatus.Closed) known.closedAt = SafeCast.toUint40(block.timestamp);
        emit StatusSet(run, status);
    }

    /// @inheritdoc IRunRegistry
    function runOf(bytes32 run) external view returns (Run memory) {
        return _known(run);
    }

    /// @inheritdoc IRunRegistry
    function termsAt(bytes32 run, uint48 time) external view returns (Terms memory) {
        if (time < _known(run).createdAt) revert NoTermsAt(run, time);
        return _terms[run][_starts[run].upperLookup(time)];
    }

    /// @inheritdoc IRunRegistry
    function statusOf(bytes32 run) external view returns (RunStatus status, uint48 createdAt, uint48 overAt) {
        Run storage known = _known(run);
        return (known.status, known.createdAt, known.closedAt == 0 ? 0 : known.closedAt + unbondingDelay);
    }

    /// @inheritdoc IRunRegistry
    function headSignerOf(bytes32 run) external view returns (address) {
        return _known(run).headSigner;
    }

    function _addTerms(bytes32 run, uint48 startsAt, Terms calldata terms) private {
        if (terms.quorum == 0 || terms.quorum > QUORUM_MAX) revert QuorumOutOfRange(terms.quorum, QUORUM_MAX);
        if (terms.slashAmount > terms.stakeMin) revert SlashOverStake(terms.slashAmount, terms.stakeMin);
        if (terms.validatorSlash > terms.stakeMin) revert SlashOverStake(terms.validatorSlash, terms.stakeMin);
        if (terms.slashPerDay < terms.slashAmount) revert DayUnderSlash(terms.slashPerDay, terms.slashAmount);
        if (terms.slashPerDay < terms.validatorSlash) revert DayUnderSlash(terms.slashPerDay, terms.validatorSlash);
        if (terms.bountyShare > BASIS_POINTS) revert ShareOutOfRange(terms.bountyShare, BASIS_POINTS);
        if (terms.epochTime == 0 || terms.slashWindow == 0 || terms.appealWindow == 0 || terms.judgementWindow == 0) {
            revert TimeMissing();
        }
        uint256 windows = uint256(terms.slashWindow) + terms.appealWindow + terms.judgementWindow;
        if (windows > unbondingDelay) revert WindowsOverDelay(windows, unbondingDelay);
        if (terms.payoutDelay > unbondingDelay) revert WindowsOverDelay(terms.payoutDelay, unbondingDelay);
        _starts[run].push(startsAt, SafeCast.toUint208(_terms[run].length));
        _terms[run].push(terms);
        emit TermsSet(run, startsAt, terms);
    }

    function _known(bytes32 run) private view returns (Run storage known) {
        known = _runs[run];
        if (known.status == RunStatus.None) revert RunUnknown(run);
    }

    function _now() private view returns (uint48) {
        return SafeCast.toUint48(block.timestamp);
    }

    function _checkName(string memory name) private pure {
        if (bytes(name).length == 0 || bytes(name).length > NAME_BYTES_MAX) revert BadName(name);
    }
}
