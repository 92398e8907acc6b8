"""The terms of a run as an operator writes them: flags override a TOML file, which overrides defaults.

What a term means to the network is in prime_protocol.ledger.terms. A model's config file can supply what follows from
its shape.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from prime_coordinator.admin.calibrations import (
    MEASURE_ADVICE,
    NAMED_CALIBRATIONS,
    check_architecture,
    find_calibration,
)
from prime_protocol.constants import (
    BASIS_POINTS,
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    PROTOCOL_VERSION,
    QUORUM_MAX,
    READ_FLOP_PER_US,
    READ_US_PER_TOKEN_MAX,
    READ_US_PER_TOKEN_MIN,
    RETENTION_MS_MAX,
    TEMPERATURE_MAX,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import (
    ANY_MODEL_FILES,
    CHECKPOINTS_KEPT_MS,
    EVIDENCE_KEPT_MS,
    ROLLOUTS_KEPT_MS,
    SLASH_EVIDENCE_KEPT_MS,
    VESTING_MS,
    RunTerms,
    SlashDestination,
    TrainOn,
)
from prime_protocol.proofs.class_bounds import format_class_bounds, parse_class_bounds
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, NodeId, parse_address
from prime_runtime.model_files import (
    CONFIG_FILE,
    UNBOUNDED_CONTEXT_TOKENS,
    digest_model_files,
    parse_context_length,
)
from prime_runtime.settings.loader import DEFAULT, ResolvedConfig, resolve_config
from prime_runtime.settings.schema import Between, ConfigError, settings_class

NANO_PER_PRIME = 10**9
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
QUORUM_DEVNET, QUORUM = 1, 3
MODEL_CONFIG_BYTES_MAX = 2**20
SHAPE_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "feed_forward": "intermediate_size",
    "vocabulary": "vocab_size",
}
"""Names in the config.json of a dense decoder."""
STATE_KEYS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "state": "state_size",
    "rank": "time_step_rank",
    "kernel": "conv_kernel",
    "vocabulary": "vocab_size",
}
"""Names in the config.json of a state-space decoder."""
STATE_FAMILIES = ("falcon_mamba", "mamba")

VALIDATOR_SLASH_NANO = 20 * NANO_PER_PRIME
"""Default: the pay of all validators for a hundred steps, so a lie costs more than honest verdicts earn in days."""

LONG_STOP_MS = 72 * HOUR_MS
"""Default: with a chain, all windows together must end before stake leaves the vault after 14 days."""


@settings_class
class TermsConfig:
    """What `run create` and `run update` take."""

    trainer: str
    """Address of the key that publishes the run's checkpoints."""
    model: str
    """Name of the model, to show."""
    model_files: str = str(ANY_MODEL_FILES)
    """Digest of the files beside the tensors: shape, tokenizer, end tokens, prompt. A model folder gives it.
    Zeros, on a devnet only: any will do."""
    tolerance: Tolerance = field(default_factory=Tolerance)
    class_bounds: tuple[str, ...] = ()
    """Bounds of two engine classes, the generating and the judging one, as the file of `prime-node calibrate merge`
    has them: CLASS > CLASS: NAME=NUMBER ... . For other pairs the tolerance holds."""
    class_bounds_closed: bool = False
    """Take work of these engine classes only."""
    calibration: str = ""
    """A named calibration, which `run calibrations` lists; or on what the tolerance was measured, as the file of
    `prime-node calibrate` says. Only a devnet runs without."""
    calibrated_at_ms: Annotated[int, Between(0, 2**53)] = 0
    """When it was measured, in Unix milliseconds. The file of `prime-node calibrate` has it."""
    task_set: str
    """Task set as in docs/protocol/tasks.md."""
    vocabulary: Annotated[int, Between(1, 2**20)]
    """Size of the model's vocabulary. A model config supplies it."""
    units_per_token: Annotated[int, Between(0, FLOP_PER_TOKEN_MAX)]
    """FLOP of one output token. A model config supplies it."""
    units_per_context_token: Annotated[int, Between(0, FLOP_PER_CONTEXT_TOKEN_MAX)] = 0
    """FLOP of attending to one earlier token. A model config supplies it."""
    slots_per_step: Annotated[int, Between(1, 2**20)] = 64
    """Tasks of one training step."""
    samples_per_slot: Annotated[int, Between(1, 1024)] = 8
    """Completions of each task: the group of GRPO."""
    prompt_tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest prompt."""
    output_tokens_max: Annotated[int, Between(1, 2**20)] = 1024
    """Longest completion."""
    context_tokens_max: Annotated[int, Between(2, UNBOUNDED_CONTEXT_TOKENS)] = UNBOUNDED_CONTEXT_TOKENS
    """The model's context: the longest prompt and completion together may not exceed it. A model config supplies it."""
    temperature: Annotated[float, Between(0.0, TEMPERATURE_MAX)] = 1.0
    """Sampling temperature; 0 is greedy."""
    lag_max: Annotated[int, Between(0, 64)] = 2
    """How many steps older than the current checkpoint a rollout's checkpoint may be."""
    version_min: Annotated[int, Between(0, PROTOCOL_VERSION)] = PROTOCOL_VERSION
    """Lowest protocol version that may take part."""
    version_next: Annotated[int, Between(0, 2**32)] = 0
    """Lowest version from upgrade_by_ms on; 0: no upgrade is planned."""
    upgrade_by_ms: Annotated[int, Between(0, 2**53)] = 0
    """When version_next takes effect, in Unix milliseconds."""
    quorum: Annotated[int, Between(1, QUORUM_MAX)] | None = None
    """Validators for each audit; unset: 1 on a devnet, 3 elsewhere."""
    inspectors: tuple[str, ...] = ()
    """Addresses of the operator's own nodes that inspect whether validators read the files they judged."""
    audit_probation: Annotated[int, Between(0, 2**20)] = 20
    """How many of a node's first accepted submissions are all audited."""
    audit_floor: Annotated[int, Between(1, BASIS_POINTS)] = 500
    """Least share of submissions that is audited, in basis points: 500 is 5 %."""
    verdict_ms: Annotated[int, Between(1_000, 24 * HOUR_MS)] = 10 * MINUTE_MS
    """Time for a drawn validator to give its verdict, before others are drawn; the time to read the file comes on top,
    and leases are cut so that it is at most as long again."""
    read_us_per_token: Annotated[int, Between(0, READ_US_PER_TOKEN_MAX)] | None = None
    """Microseconds that a validator is granted to read one token; unset: derived from units_per_token."""
    appeal_ms: Annotated[int, Between(1_000, 90 * 24 * HOUR_MS)] = 24 * HOUR_MS
    """Time to appeal against a slash."""
    judgement_ms: Annotated[int, Between(1_000, 90 * 24 * HOUR_MS)] = 24 * HOUR_MS
    """Time for judges to decide an appeal, and for an inspector to decide a file on which validators stay split. After
    that an inspector may decide the appeal too."""
    long_stop_ms: Annotated[int, Between(1_000, 366 * 24 * HOUR_MS)] | None = None
    """How long an appeal that has no judges keeps the stake in escrow, before it is returned without credit; at least
    judgement_ms. Unset: 72 h, or judgement_ms."""
    stake_min_nano: Annotated[int, Between(0, 2**63 - 1)] = 100 * NANO_PER_PRIME
    """Least stake behind a node that gets work."""
    slash_nano: Annotated[int, Between(0, 2**63 - 1)] = 50 * NANO_PER_PRIME
    """What a fraudulent submission costs; at most stake_min_nano."""
    validator_slash_nano: Annotated[int, Between(0, 2**63 - 1)] | None = None
    """What a validator loses whose verdict is refuted, at most stake_min_nano; unset: 20 PRIME, or stake_min_nano."""
    appeal_bond_nano: Annotated[int, Between(0, 2**63 - 1)] = 5 * NANO_PER_PRIME
    """Bond of an appeal, lost if it fails."""
    slash_to: SlashDestination = SlashDestination.BURN
    """Where slashed stake goes."""
    step_budget_nano: Annotated[int, Between(0, 2**63 - 1)] = 2 * NANO_PER_PRIME
    """What a step pays to all credited nodes, while the pool lasts. One node may earn all of it, so it must be less
    than what a slash deters at the audit floor: docs/verification.md."""
    audit_share: Annotated[int, Between(0, BASIS_POINTS)] = 1_000
    """Share of the budget for validators whose verdicts were confirmed, in basis points."""
    train_on: TrainOn = TrainOn.ACCEPTED
    """Submissions that checkpoints may be trained on: all accepted ones, or only audited ones."""
    vesting_ms: Annotated[int, Between(0, 90 * 24 * HOUR_MS)] | None = None
    """How long after its last settled submission a step is paid; until then a conviction costs the node its unpaid pay.
    Unset: 0 on a devnet, 24 h elsewhere."""
    finding_bond_nano: Annotated[int, Between(0, 2**63 - 1)] = NANO_PER_PRIME
    """Bond of a finding, lost if judges do not agree with it."""
    bounty_share: Annotated[int, Between(0, BASIS_POINTS)] = 2_000
    """Share of an executed slash that goes to the account that filed the finding behind it, in basis points."""
    rollouts_kept_ms: Annotated[int, Between(0, RETENTION_MS_MAX)] | None = None
    """How long after its step was settled a rollout file is kept; longer where its case is open. At least vesting_ms,
    judgement_ms, appeal_ms and long_stop_ms together. Unset: 7 days, or that least value."""
    evidence_kept_ms: Annotated[int, Between(0, RETENTION_MS_MAX)] | None = None
    """How long evidence that led to no slash is kept; the same least value. Unset: 30 days, or that value."""
    slash_evidence_kept_ms: Annotated[int, Between(0, RETENTION_MS_MAX)] | None = None
    """How long the evidence and the rollout file of a slash are kept after it has ended; at least as long as other
    files. Unset: 366 days, or that value."""
    checkpoints_kept_ms: Annotated[int, Between(0, RETENTION_MS_MAX)] | None = None
    """How long after its step was settled the manifest of a checkpoint is kept; the same least value as for rollout
    files. Unset: 30 days, or that value."""


def read_terms(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    toml: Path | None,
    model_config: Path | None,
    *,
    is_devnet: bool,
) -> RunTerms:
    """Terms of a new run; ConfigError names the key that is wrong or missing."""
    known = read_model_config(model_config) if model_config else {}
    resolved = resolve_config(TermsConfig, flags, environ, toml, known=known)
    terms = to_terms(apply_named_calibration(resolved, model_config), is_devnet=is_devnet)
    if not is_devnet:
        require_model_files(terms)
        check_calibration(terms)
    return terms


def apply_named_calibration(resolved: ResolvedConfig[TermsConfig], model_config: Path | None) -> TermsConfig:
    """The config with the bounds that `calibration` names. ConfigError: they are not for this model."""
    config = resolved.config
    named = find_calibration(config.calibration)
    if named is None:
        if config.calibration and not config.calibrated_at_ms:
            names = ", ".join(each.name for each in NAMED_CALIBRATIONS)
            raise ConfigError(
                f"calibration {config.calibration!r} is not a known name; there are: {names}. {MEASURE_ADVICE}"
            )
        return config  # none, or measured by the operator
    for each in fields(Tolerance):
        source, given = resolved.sources[f"tolerance.{each.name}"], getattr(config.tolerance, each.name)
        wanted = getattr(named.tolerance, each.name)
        if source != DEFAULT and given != wanted:
            raise ConfigError(
                f"tolerance.{each.name} is {given} ({source}), calibration {named.name} has {wanted}: leave it out. "
                + MEASURE_ADVICE
            )
    check_architecture(named, load_model_config(model_config) if model_config else None)
    return replace(
        config, calibration=named.describe(), calibrated_at_ms=named.measured_at_ms, tolerance=named.tolerance
    )


def check_calibration(terms: RunTerms) -> None:
    """Default bounds fit every kind of machine, so they let small deviations pass: for trying things out only."""
    if not terms.calibration or not terms.calibrated_at_ms:
        raise ConfigError(
            f"calibration is missing. {MEASURE_ADVICE}, or take one that `prime-coordinator run calibrations` lists. "
            "Only a devnet runs without"
        )


def change_terms(terms: RunTerms, flags: Mapping[str, Any], toml: Path | None) -> RunTerms:
    """The run's present terms with the operator's changes; the environment is not read."""
    known = {each.name: getattr(terms, each.name) for each in fields(terms)}
    known |= {"trainer": str(terms.trainer), "model_files": str(terms.model_files)}
    known |= {"inspectors": tuple(map(str, terms.inspectors))}
    tolerance, bounds = known.pop("tolerance"), known.pop("class_bounds")
    known |= {"class_bounds": tuple(format_class_bounds(bounds, tolerance)), "class_bounds_closed": bounds.is_closed}
    known |= {f"tolerance.{each.name}": getattr(tolerance, each.name) for each in fields(tolerance)}
    config = resolve_config(TermsConfig, flags, {}, toml, known=known).config
    if find_calibration(config.calibration) is not None:
        raise ConfigError(f"calibration {config.calibration} is a name for `run create`. {MEASURE_ADVICE}")
    changed = to_terms(config, is_devnet=False)
    if terms.model_files != ANY_MODEL_FILES:
        require_model_files(changed)
    if terms.calibration:
        check_calibration(changed)
    return changed


def require_model_files(terms: RunTerms) -> None:
    """Without the digest a trainer could give nodes another tokenizer with every checkpoint."""
    if terms.model_files == ANY_MODEL_FILES:
        raise ConfigError(
            "model_files is missing: outside a devnet a run is bound to its model's files. Give the model's folder, "
            "with config.json, tokenizer.json and the others as the trainer has them: --model-config FOLDER"
        )


def to_terms(config: TermsConfig, *, is_devnet: bool) -> RunTerms:
    values = asdict(config)
    values["tolerance"] = tolerance = Tolerance(**values["tolerance"])
    lines, is_closed = values.pop("class_bounds"), values.pop("class_bounds_closed")
    try:
        values["class_bounds"] = parse_class_bounds(lines, tolerance, is_closed=is_closed)
    except RemoteError as error:
        raise ConfigError(f"{error.field} {error.problem}") from None
    if values["quorum"] is None:
        values["quorum"] = QUORUM_DEVNET if is_devnet else QUORUM
    if values["vesting_ms"] is None:
        values["vesting_ms"] = 0 if is_devnet else VESTING_MS
    if values["validator_slash_nano"] is None:
        values["validator_slash_nano"] = min(VALIDATOR_SLASH_NANO, config.stake_min_nano)
    if values["long_stop_ms"] is None:
        values["long_stop_ms"] = max(LONG_STOP_MS, config.judgement_ms)
    _fill_retention(values)
    if values["read_us_per_token"] is None:
        values["read_us_per_token"] = compute_read_us_per_token(config.units_per_token)
    values["trainer"] = _parse_node("trainer", config.trainer)
    values["inspectors"] = tuple(_parse_node("inspectors", each) for each in config.inspectors)
    try:
        values["model_files"] = Digest.parse(config.model_files)
    except RemoteError as error:
        raise ConfigError(f"model_files is {config.model_files!r}; {error.problem}") from None
    try:
        # Encoded and decoded, so that the operator's terms pass the same limits as a stranger's message.
        return decode(RunTerms, encode(RunTerms(**values)))
    except RemoteError as error:
        raise ConfigError(f"{error.field.removeprefix('RunTerms.')} {error.problem}") from None


def _fill_retention(values: dict[str, Any]) -> None:
    """What the operator left out is the default, or the least that the other windows allow."""
    least_ms = sum(values[name] for name in ("vesting_ms", "judgement_ms", "appeal_ms", "long_stop_ms"))
    defaults = {
        "rollouts_kept_ms": ROLLOUTS_KEPT_MS,
        "evidence_kept_ms": EVIDENCE_KEPT_MS,
        "checkpoints_kept_ms": CHECKPOINTS_KEPT_MS,
    }
    for name, kept_ms in defaults.items():
        if values[name] is None:
            values[name] = max(kept_ms, least_ms)
    if values["slash_evidence_kept_ms"] is None:
        others_ms = max(values["rollouts_kept_ms"], values["evidence_kept_ms"])
        values["slash_evidence_kept_ms"] = max(SLASH_EVIDENCE_KEPT_MS, others_ms)


def compute_read_us_per_token(units_per_token: int) -> int:
    """What a slow GPU needs for two forward passes, one in each precision."""
    return min(READ_US_PER_TOKEN_MAX, max(READ_US_PER_TOKEN_MIN, -(-2 * units_per_token // READ_FLOP_PER_US)))


def _parse_node(name: str, text: str) -> NodeId:
    try:
        return parse_address(text)
    except RemoteError as error:
        raise ConfigError(f"{name} is {text!r}; {error.problem}") from None


def load_model_config(path: Path) -> dict[str, Any]:
    """The config.json of a model, or of the folder that contains it, as it is."""
    path = path / CONFIG_FILE if path.is_dir() else path
    try:
        with path.open("rb") as file:
            raw = file.read(MODEL_CONFIG_BYTES_MAX + 1)
        found = json.loads(raw)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot read the model config {path}: {error}") from None
    if len(raw) > MODEL_CONFIG_BYTES_MAX or not isinstance(found, dict):
        raise LocalError(f"{path} is not the config.json of a model")
    return found


def read_model_config(path: Path) -> dict[str, Any]:
    """What a model's config.json says: vocabulary, context and FLOP factors. Its folder also gives the digest of its
    files."""
    from prime_protocol.ledger.rewards import (  # here, because `run --help` imports this module
        StateSpaceShape,
        TransformerShape,
        compute_flop_per_context_token,
        compute_flop_per_token,
        compute_state_space_flop_per_token,
    )

    if path.is_dir():
        return {**read_model_config(path / CONFIG_FILE), "model_files": str(digest_model_files(path))}
    found = load_model_config(path)
    try:
        context = {"context_tokens_max": min(parse_context_length(found), UNBOUNDED_CONTEXT_TOKENS)}
    except RemoteError as error:
        raise LocalError(f"{path} does not say the model's context: {error}") from None
    if found.get("model_type") in STATE_FAMILIES:
        shape = StateSpaceShape(**_take_numbers(path, found, STATE_KEYS))
        return {"vocabulary": shape.vocabulary, "units_per_token": compute_state_space_flop_per_token(shape), **context}
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    if found.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        found["head_dim"] = hidden // heads
    dense = TransformerShape(**_take_numbers(path, found, SHAPE_KEYS))
    return {
        "vocabulary": dense.vocabulary,
        "units_per_token": compute_flop_per_token(dense),
        "units_per_context_token": compute_flop_per_context_token(dense),
        **context,
    }


def _take_numbers(path: Path, found: dict[str, Any], keys: dict[str, str]) -> dict[str, int]:
    missing = [key for key in keys.values() if type(found.get(key)) is not int or found[key] < 1]
    if missing:
        raise LocalError(
            f"{path} has no whole number for {', '.join(missing)}; give --units-per-token and --vocabulary"
        )
    return {name: found[key] for name, key in keys.items()}
