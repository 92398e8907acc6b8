"""The terms of a run as an operator writes them: flags override a TOML file, which overrides defaults.

What a term means to the network is in prime_protocol.ledger.terms. A model's config file can supply what follows from
its shape.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Annotated, Any

from prime_protocol.constants import (
    BASIS_POINTS,
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    PROTOCOL_VERSION,
    QUORUM_MAX,
    TEMPERATURE_MAX,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.rewards import (
    StateSpaceShape,
    TransformerShape,
    compute_flop_per_context_token,
    compute_flop_per_token,
    compute_state_space_flop_per_token,
)
from prime_protocol.ledger.terms import ANY_MODEL_FILES, RunTerms, SlashDestination
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.model_files import CONFIG_FILE, digest_model_files
from prime_runtime.settings.loader import resolve_config
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


@settings_class
class TermsConfig:
    """What `run create` and `run update` take."""

    trainer: str
    """Address of the key that publishes the run's checkpoints."""
    model: str
    """Name of the model, to show."""
    model_files: str = str(ANY_MODEL_FILES)
    """Digest of the files beside the tensors: shape, tokenizer, end tokens, prompt. A model folder gives it; zeros:
    any will do."""
    tolerance: Tolerance = field(default_factory=Tolerance)
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
    """Time for a drawn validator to give its verdict, before others are drawn."""
    appeal_ms: Annotated[int, Between(1_000, 90 * 24 * HOUR_MS)] = 24 * HOUR_MS
    """Time to appeal against a slash."""
    judgement_ms: Annotated[int, Between(1_000, 90 * 24 * HOUR_MS)] = 24 * HOUR_MS
    """Time to decide an appeal; after that the stake is returned."""
    stake_min_nano: Annotated[int, Between(0, 2**63 - 1)] = 100 * NANO_PER_PRIME
    """Least stake behind a node that gets work."""
    slash_nano: Annotated[int, Between(0, 2**63 - 1)] = 50 * NANO_PER_PRIME
    """What a fraudulent submission costs; at most stake_min_nano."""
    appeal_bond_nano: Annotated[int, Between(0, 2**63 - 1)] = 5 * NANO_PER_PRIME
    """Bond of an appeal, lost if it fails."""
    slash_to: SlashDestination = SlashDestination.BURN
    """Where slashed stake goes."""
    step_budget_nano: Annotated[int, Between(0, 2**63 - 1)] = 2 * NANO_PER_PRIME
    """What a step pays to all credited nodes, while the pool lasts. One node may earn all of it, so it must be less
    than what a slash deters at the audit floor: docs/verification.md."""
    audit_share: Annotated[int, Between(0, BASIS_POINTS)] = 1_000
    """Share of the budget for validators whose verdicts were confirmed, in basis points."""


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
    return to_terms(resolve_config(TermsConfig, flags, environ, toml, known=known).config, is_devnet=is_devnet)


def change_terms(terms: RunTerms, flags: Mapping[str, Any], toml: Path | None) -> RunTerms:
    """The run's present terms with the operator's changes; the environment is not read."""
    known = {each.name: getattr(terms, each.name) for each in fields(terms)}
    known |= {"trainer": str(terms.trainer), "model_files": str(terms.model_files)}
    known |= {"inspectors": tuple(map(str, terms.inspectors))}
    tolerance = known.pop("tolerance")
    known |= {f"tolerance.{each.name}": getattr(tolerance, each.name) for each in fields(tolerance)}
    return to_terms(resolve_config(TermsConfig, flags, {}, toml, known=known).config, is_devnet=False)


def to_terms(config: TermsConfig, *, is_devnet: bool) -> RunTerms:
    values = asdict(config)
    values["tolerance"] = Tolerance(**values["tolerance"])
    if values["quorum"] is None:
        values["quorum"] = QUORUM_DEVNET if is_devnet else QUORUM
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


def _parse_node(name: str, text: str) -> NodeId:
    try:
        return NodeId.parse(text)
    except RemoteError as error:
        raise ConfigError(f"{name} is {text!r}; {error.problem}") from None


def read_model_config(path: Path) -> dict[str, Any]:
    """What a model's config.json says: vocabulary and FLOP factors. Its folder also gives the digest of its files."""
    if path.is_dir():
        return {**read_model_config(path / CONFIG_FILE), "model_files": str(digest_model_files(path))}
    try:
        with path.open("rb") as file:
            raw = file.read(MODEL_CONFIG_BYTES_MAX + 1)
        found = json.loads(raw)
    except (OSError, ValueError) as error:
        raise LocalError(f"cannot read the model config {path}: {error}") from None
    if len(raw) > MODEL_CONFIG_BYTES_MAX or not isinstance(found, dict):
        raise LocalError(f"{path} is not the config.json of a model")
    if found.get("model_type") in STATE_FAMILIES:
        shape = StateSpaceShape(**_take_numbers(path, found, STATE_KEYS))
        return {"vocabulary": shape.vocabulary, "units_per_token": compute_state_space_flop_per_token(shape)}
    found.setdefault("num_key_value_heads", found.get("num_attention_heads"))
    heads, hidden = found.get("num_attention_heads"), found.get("hidden_size")
    if found.get("head_dim") is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        found["head_dim"] = hidden // heads
    dense = TransformerShape(**_take_numbers(path, found, SHAPE_KEYS))
    return {
        "vocabulary": dense.vocabulary,
        "units_per_token": compute_flop_per_token(dense),
        "units_per_context_token": compute_flop_per_context_token(dense),
    }


def _take_numbers(path: Path, found: dict[str, Any], keys: dict[str, str]) -> dict[str, int]:
    missing = [key for key in keys.values() if type(found.get(key)) is not int or found[key] < 1]
    if missing:
        raise LocalError(
            f"{path} has no whole number for {', '.join(missing)}; give --units-per-token and --vocabulary"
        )
    return {name: found[key] for name, key in keys.items()}


def terms_from_plain(plain: Mapping[str, Any]) -> RunTerms:
    """From the JSON of the API."""
    known = {each.name: plain[each.name] for each in fields(RunTerms)}
    tolerance = plain["tolerance"]
    typed = {
        "trainer": NodeId.parse(plain["trainer"]),
        "inspectors": tuple(map(NodeId.parse, plain["inspectors"])),
        "slash_to": SlashDestination(plain["slash_to"]),
        "model_files": Digest.parse(plain["model_files"]),
        "tolerance": Tolerance(**tolerance | {"precision": Precision(tolerance["precision"])}),
    }
    return RunTerms(**known | typed)
