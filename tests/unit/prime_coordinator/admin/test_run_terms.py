"""Terms as an operator writes them: every wrong one is named, and what is not said keeps its place."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.admin.calibrations import NAMED_CALIBRATIONS, SMOLLM2_135M, NamedCalibration
from prime_coordinator.admin.run_terms import TermsConfig, change_terms, read_model_config, read_terms
from prime_protocol.errors import LocalError
from prime_protocol.ledger.rewards import TransformerShape, compute_flop_per_context_token, compute_flop_per_token
from prime_protocol.ledger.terms import ANY_MODEL_FILES, RunTerms
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import NodeId
from prime_runtime.model_files import digest_model_files
from prime_runtime.settings.schema import ConfigError
from prime_trainer.model.tiny import make_tiny_checkpoint

LEAST = {
    "trainer": "0x" + "11" * 20,
    "model": "tiny",
    "task_set": "arithmetic",
    "vocabulary": "64",
    "units_per_token": "1000",
}
MODEL = {
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
}


def read(file: Path | None = None, shape: Path | None = None, /, *, is_devnet: bool = True, **flags: str) -> RunTerms:
    return read_terms(flags, {}, file, shape, is_devnet=is_devnet)


BOUND = {"model_files": "0x" + "11" * 32}
CALIBRATED = {"calibration": "two machines", "calibrated_at_ms": "1700000000000"}


def test_a_run_needs_a_calibration_unless_it_is_on_a_devnet_and_keeps_it() -> None:
    assert read(**LEAST).calibration == ""
    for given in ({}, {"calibration": "two machines"}, {"calibrated_at_ms": "1"}):
        with pytest.raises(ConfigError, match="prime-node calibrate"):
            read(**LEAST, **BOUND, **given, is_devnet=False)
    terms = read(**LEAST, **BOUND, **CALIBRATED, is_devnet=False)
    assert change_terms(terms, {"lag_max": "1"}, None).calibration == "two machines"
    with pytest.raises(ConfigError, match="calibration is missing"):
        change_terms(terms, {"calibration": ""}, None)


def test_what_is_not_said_about_files_follows_the_windows_and_less_is_refused_with_the_least() -> None:
    day_ms = 24 * 3_600_000
    usual = read(**LEAST)
    assert (usual.rollouts_kept_ms, usual.slash_evidence_kept_ms) == (7 * day_ms, 366 * day_ms)
    long = read(**LEAST, appeal_ms=str(40 * day_ms), evidence_kept_ms=str(400 * day_ms))
    assert long.rollouts_kept_ms == long.checkpoints_kept_ms == long.compute_decided_ms() > 40 * day_ms
    assert long.slash_evidence_kept_ms == 400 * day_ms
    least_ms = usual.compute_decided_ms()
    with pytest.raises(ConfigError, match=f"^rollouts_kept_ms is 5, the least is {least_ms}"):
        read(**LEAST, rollouts_kept_ms="5")
    with pytest.raises(ConfigError, match="the least is"):
        change_terms(usual, {"vesting_ms": str(9 * day_ms)}, None)


SHAPELESS = {name: LEAST[name] for name in ("trainer", "model", "task_set")}
SMOLLM2 = {**SMOLLM2_135M, "max_position_embeddings": 8192}


@pytest.mark.parametrize("named", NAMED_CALIBRATIONS, ids=lambda each: each.name)
def test_a_named_calibration_supplies_its_bounds_and_says_where_they_are_from(
    named: NamedCalibration, tmp_path: Path
) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(SMOLLM2))
    given = {**SHAPELESS, **BOUND, "calibration": named.name}
    terms = read(None, shape, **given, is_devnet=False)
    assert terms.tolerance == named.tolerance
    assert terms.calibration == f"{named.name}: {named.measured_on}"
    assert terms.calibrated_at_ms == named.measured_at_ms
    assert f"-{terms.tolerance.precision}" in named.name
    assert str(terms.tolerance.precision) in named.measured_on
    same = {"tolerance.precision": str(named.tolerance.precision)}
    assert read(None, shape, **given, **same, is_devnet=False) == terms
    with pytest.raises(ConfigError, match="a name for `run create`"):
        change_terms(terms, {"calibration": named.name}, None)


@pytest.mark.parametrize(
    ("change", "flags", "problem"),
    [
        ({"model_type": "qwen2"}, {}, "model_type llama, this one has qwen2"),
        ({"num_hidden_layers": 32}, {}, "num_hidden_layers 30, this one has 32"),
        ({"vocab_size": 151936}, {}, "vocab_size 49152"),
        ({}, {"tolerance.precision": "float32"}, "tolerance.precision is float32"),
        ({}, {"tolerance.margin_max": "2"}, "tolerance.margin_max is 2.0"),
        ({}, {"calibration": "qwen2.5-bfloat16"}, "not a known name; there are: smollm2"),
    ],
)
def test_a_named_calibration_is_refused_for_another_model_or_other_bounds(
    change: dict[str, Any], flags: dict[str, str], problem: str, tmp_path: Path
) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps({**SMOLLM2, **change}))
    with pytest.raises(ConfigError, match=problem) as refused:
        read(None, shape, **{**SHAPELESS, "calibration": "smollm2-135m-bfloat16", **flags})
    assert "prime-node calibrate" in str(refused.value)


def test_a_named_calibration_needs_the_models_config() -> None:
    with pytest.raises(ConfigError, match="--model-config"):
        read(**LEAST, calibration="smollm2-135m-float32")


def test_every_term_can_be_written_and_no_other() -> None:
    written = {field.name for field in fields(TermsConfig)} - {"class_bounds_closed"}  # part of class_bounds
    assert written == {field.name for field in fields(RunTerms)}


def test_quorum_is_one_on_a_devnet_and_three_elsewhere_unless_said() -> None:
    assert read(**LEAST).quorum == 1
    assert read(**LEAST, **BOUND, **CALIBRATED, is_devnet=False).quorum == 3
    assert read(**LEAST, quorum="5").quorum == 5


def test_a_run_outside_a_devnet_is_bound_to_its_models_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model_files is missing: .* --model-config FOLDER"):
        read(**LEAST, **CALIBRATED, is_devnet=False)
    with pytest.raises(ConfigError, match="model_files is missing"):
        read(**LEAST, **CALIBRATED, is_devnet=False, model_files=str(ANY_MODEL_FILES))
    folder = make_tiny_checkpoint(tmp_path / "model")
    bound = read(None, folder, **LEAST, **CALIBRATED, is_devnet=False)
    assert bound.model_files == digest_model_files(folder)
    with pytest.raises(ConfigError, match="model_files is missing"):
        change_terms(bound, {"model_files": str(ANY_MODEL_FILES)}, None)
    assert change_terms(read(**LEAST), {"quorum": "5"}, None).model_files == ANY_MODEL_FILES, "a devnet's run"


def test_inspectors_default_to_none_and_stay_when_other_terms_change() -> None:
    assert read(**LEAST).inspectors == ()
    named = read(**LEAST, inspectors=",".join("0x" + each * 20 for each in ("33", "22")))
    assert named.inspectors == (NodeId(b"\x33" * 20), NodeId(b"\x22" * 20))
    assert change_terms(named, {"quorum": "5"}, None).inspectors == named.inspectors


def test_least_share_of_audits_is_five_percent() -> None:
    assert read(**LEAST).audit_floor == 500


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer", "bob"),
        ("trainer", "0x" + "AA" * 20),
        ("inspectors", "bob"),
        ("inspectors", ",".join(["0x" + "22" * 20] * 2)),
        ("quorum", "0"),
        ("quorum", "16"),
        ("temperature", "0.0001"),
        ("temperature", "nan"),
        ("slash_nano", "100000000001"),
        ("slots_per_step", "1.5"),
        ("model", "x" * 201),
        ("slash_to", "judge"),
        ("version_next", "9"),
        ("audit_share", "10001"),
    ],
)
def test_wrong_term_is_named(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} "):
        read(**{**LEAST, key: value})


def test_all_missing_terms_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        read()
    assert [line.partition(" ")[0] for line in str(error.value).splitlines()] == list(LEAST)


def test_flags_overrule_the_file_and_the_file_the_model(tmp_path: Path) -> None:
    terms, model = tmp_path / "terms.toml", tmp_path / "config.json"
    model.write_text(json.dumps(MODEL))
    terms.write_text('vocabulary = 100\nlag_max = 7\nquorum = 2\nmodel = "m"\ntask_set = "t"\n')
    found = read(terms, model, trainer=LEAST["trainer"], quorum="4")
    assert (found.quorum, found.lag_max, found.vocabulary) == (4, 7, 100)
    shape = TransformerShape(
        layers=24, hidden=896, heads=14, kv_heads=2, head_dim=64, feed_forward=4864, vocabulary=151936
    )
    assert found.units_per_token == compute_flop_per_token(shape)
    assert found.units_per_context_token == compute_flop_per_context_token(shape)


def test_terms_beyond_the_models_context_are_refused(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(MODEL))
    short = {name: value for name, value in LEAST.items() if name not in ("vocabulary", "units_per_token")}
    assert read(None, model, **short, prompt_tokens_max="96", output_tokens_max="4000").context_tokens_max == 4096
    with pytest.raises(ConfigError, match=r"context_tokens_max is 4096, .* together are 4097"):
        read(None, model, **short, prompt_tokens_max="97", output_tokens_max="4000")
    present = read(None, model, **short)
    with pytest.raises(ConfigError, match="context_tokens_max"):
        change_terms(present, {"output_tokens_max": "4000"}, None)
    model.write_text(json.dumps({name: value for name, value in MODEL.items() if name != "max_position_embeddings"}))
    with pytest.raises(LocalError, match="does not say the model's context"):
        read(None, model, **short)


@pytest.mark.parametrize(("units", "us"), [(10**6, 200), (10**9, 200), (14 * 10**9, 2_800), (10**14, 10**6)])
def test_the_time_to_read_a_token_follows_from_the_model_unless_it_is_given(units: int, us: int) -> None:
    terms = {**LEAST, "units_per_token": str(units)}
    assert read(**terms).read_us_per_token == us
    assert read(**terms, read_us_per_token="7").read_us_per_token == 7


def test_unknown_term_in_the_file_is_refused_with_the_nearest(tmp_path: Path) -> None:
    terms = tmp_path / "terms.toml"
    terms.write_text("quorm = 2\n")
    with pytest.raises(ConfigError, match="did you mean quorum"):
        read(terms, **LEAST)


@pytest.mark.parametrize("body", ["", "[]", "{", json.dumps({**MODEL, "vocab_size": "many"}), json.dumps({"a": 1})])
def test_file_that_is_no_model_config_is_refused(tmp_path: Path, body: str) -> None:
    model = tmp_path / "config.json"
    model.write_text(body)
    with pytest.raises(LocalError):
        read_model_config(model)


def test_model_config_may_leave_out_what_follows_from_the_rest(tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    short: dict[str, Any] = {name: value for name, value in MODEL.items() if name != "num_key_value_heads"}
    model.write_text(json.dumps({**short, "head_dim": None}))
    whole = tmp_path / "whole.json"
    whole.write_text(json.dumps({**MODEL, "num_key_value_heads": 14, "head_dim": 64}))
    assert read_model_config(model) == read_model_config(whole)


def test_update_changes_what_is_named_and_keeps_the_rest(tmp_path: Path) -> None:
    present = read(**LEAST, quorum="5", lag_max="3", audit_probation="7")
    terms = tmp_path / "terms.toml"
    terms.write_text("lag_max = 4\nquorum = 2\n")
    changed = change_terms(present, {"quorum": "6"}, terms)
    assert (changed.quorum, changed.lag_max, changed.audit_probation) == (6, 4, 7)
    assert changed.trainer == present.trainer
    assert change_terms(present, {}, None) == present


def test_addresses_may_have_the_capitals_that_commands_print() -> None:
    printed = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    terms = read(**{**LEAST, "trainer": printed, "inspectors": printed})
    assert str(terms.trainer) == printed.lower()
    assert terms.inspectors == (terms.trainer,)
    with pytest.raises(ConfigError, match=r"trainer .* fails the checksum"):
        read(**{**LEAST, "trainer": printed.replace("5aA", "5aa")})


def test_a_calibrated_tolerance_comes_from_the_file_and_the_rest_keeps_its_place(tmp_path: Path) -> None:
    file = tmp_path / "tolerance.toml"
    file.write_text('[tolerance]\nprecision = "float32"\nmargin_max = 0.25\n')
    terms = read_terms(LEAST, {}, file, None, is_devnet=True)
    assert (terms.tolerance.precision, terms.tolerance.margin_max) == (Precision.FLOAT32, 0.25)
    changed = change_terms(terms, {"tolerance.logprob_error_max": "0.5"}, None)
    assert changed.tolerance == replace(terms.tolerance, logprob_error_max=0.5)


def test_invalid_model_and_tolerance_terms_are_named() -> None:
    with pytest.raises(ConfigError, match=r"tolerance\.margin_max is 500"):
        read_terms(LEAST | {"tolerance.margin_max": "500"}, {}, None, None, is_devnet=True)
    with pytest.raises(ConfigError, match="model_files is 'abc'"):
        read(**LEAST, model_files="abc")


def test_a_models_folder_binds_the_run_to_its_files(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    terms = read(None, folder, **{name: LEAST[name] for name in ("trainer", "model", "task_set")})
    assert terms.vocabulary == 32
    assert terms.model_files == digest_model_files(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LocalError, match=r"has no tokenizer\.json"):
        read(None, folder, **LEAST)


def test_a_table_of_engine_classes_is_read_from_text_and_kept_by_an_update(tmp_path: Path) -> None:
    quiet, other = "cpu-avx2/torch-2.13/prime/float32/tp1", "cpu-avx2/vllm-0.32/cpu-attn/float32/tp2"
    toml = tmp_path / "bounds.toml"
    toml.write_text(f'class_bounds = ["{quiet} > {other}: margin_max=0.01"]\nclass_bounds_closed = true\n')
    terms = read_terms(LEAST, {}, toml, None, is_devnet=True)
    assert terms.class_bounds.classes == (quiet, other)
    assert terms.class_bounds.is_closed
    assert terms.get_tolerance(*terms.class_bounds.classes).margin_max == 0.01
    assert change_terms(terms, {"quorum": "2"}, None).class_bounds == terms.class_bounds
    toml.write_text(f'class_bounds = ["{quiet} > {other}: margin_max=1e9"]\n')
    with pytest.raises(ConfigError, match="wider than the default"):
        read_terms(LEAST, {}, toml, None, is_devnet=True)
    toml.write_text('class_bounds = ["H100"]\n')
    with pytest.raises(ConfigError, match=r"class_bounds\[0\]"):
        read_terms(LEAST, {}, toml, None, is_devnet=True)
