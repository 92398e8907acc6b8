"""Claims about the files beside a checkpoint's tensors: what is taken from them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.errors import LocalError
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_runtime.model_files import BYTES_MAX, ModelFiles, digest_model_files
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint


def change(folder: Path, name: str = "config.json", **values: Any) -> Path:
    """Other values in one of the JSON files; None takes a key out."""
    kept = json.loads((folder / name).read_text()) | values
    (folder / name).write_text(json.dumps({key: value for key, value in kept.items() if value is not None}))
    return folder


def test_tells_the_shape_and_the_end_tokens(tmp_path: Path) -> None:
    files = ModelFiles.open(make_tiny_checkpoint(tmp_path, vocabulary=40, hidden=96, layers=3, context=77, eos=[3, 7]))
    assert (files.vocabulary, files.hidden, files.layers, files.context_max) == (40, 96, 3, 77)
    assert (files.architecture, files.family, files.eos) == ("Qwen2ForCausalLM", "qwen2", {3, 7})


def test_a_recurrent_model_has_a_context_without_end_unless_it_says_otherwise(tmp_path: Path) -> None:
    change(make_tiny_checkpoint(tmp_path, context=77), model_type="mamba")
    assert ModelFiles.open(tmp_path).context_max == 77
    change(tmp_path, max_position_embeddings=None)
    assert ModelFiles.open(tmp_path).context_max == 2**21
    change(tmp_path, model_type="llama")
    with pytest.raises(LocalError, match="max_position_embeddings: is missing"):
        ModelFiles.open(tmp_path)


def test_end_tokens_of_generation_come_before_those_of_the_model(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, eos=5)
    assert ModelFiles.open(change(tmp_path, "generation_config.json", eos_token_id=[6])).eos == {6}
    assert ModelFiles.open(change(tmp_path, "generation_config.json", eos_token_id=None)).eos == {5}
    (tmp_path / "generation_config.json").unlink()
    assert ModelFiles.open(tmp_path).eos == {5}
    assert ModelFiles.open(change(tmp_path, eos_token_id=None)).eos == frozenset()


def test_encodes_and_decodes_the_prompts_of_the_character_families(tmp_path: Path) -> None:
    files = ModelFiles.open(make_tiny_checkpoint(tmp_path))
    for family in ("sort-digits", "arithmetic?operation=multiply"):
        task = open_family(TaskSetSpec.parse(family)).make(3)
        (tokens,) = files.encode_prompts([task.prompt])
        assert len(tokens) == len(task.prompt)
        assert files.decode([tokens]) == [task.prompt]
    assert files.decode([[1, 2, EOS_TOKEN]]) == ["12$"], "the end token is part of the text"


def test_a_prompt_is_put_into_the_text_around_it(tmp_path: Path) -> None:
    files = ModelFiles.open(make_tiny_checkpoint(tmp_path, prompt="= {prompt} ="))
    assert files.decode(files.encode_prompts(["^1>"])) == ["= ^1> ="]


@pytest.mark.parametrize("text", [b"no place", b"{prompt} and {prompt}", b"\xff{prompt}"])
def test_a_prompt_file_without_exactly_one_place_is_refused(tmp_path: Path, text: bytes) -> None:
    (make_tiny_checkpoint(tmp_path) / "prompt.txt").write_bytes(text)
    with pytest.raises(LocalError, match=r"prompt\.txt"):
        ModelFiles.open(tmp_path)


def test_a_prompt_that_has_no_tokens_is_an_error_with_its_name(tmp_path: Path) -> None:
    files = ModelFiles.open(make_tiny_checkpoint(tmp_path))
    with pytest.raises(LocalError, match="cannot encode the text 'é'"):
        files.encode_prompts(["é"])
    with pytest.raises(LocalError, match="no tokens"):
        files.encode_prompts([""])


def test_a_token_beyond_the_model_is_refused(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, vocabulary=40)
    files = ModelFiles.open(change(tmp_path, vocab_size=20))
    with pytest.raises(LocalError, match="gives token 30, the model has 20"):
        files.encode_prompts(["1m"])


def test_the_digest_covers_names_and_bytes_of_these_files_and_no_others(tmp_path: Path) -> None:
    before = digest_model_files(make_tiny_checkpoint(tmp_path, seed=1))
    assert digest_model_files(make_tiny_checkpoint(tmp_path, seed=2)) == before, "tensors are not part of it"
    assert ModelFiles.open(tmp_path).digest == before
    (tmp_path / "README.md").write_text("hello")
    assert digest_model_files(tmp_path) == before
    (tmp_path / "prompt.txt").write_text("{prompt}")
    with_prompt = digest_model_files(tmp_path)
    assert with_prompt != before
    (tmp_path / "prompt.txt").write_text("{prompt} ")
    assert digest_model_files(tmp_path) not in (before, with_prompt)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    (make_tiny_checkpoint(tmp_path) / name).unlink()
    with pytest.raises(LocalError, match=f"has no {name}"):
        ModelFiles.open(tmp_path)


@pytest.mark.parametrize("name", sorted(BYTES_MAX))
def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path, name: str) -> None:
    with (make_tiny_checkpoint(tmp_path) / name).open("wb") as file:
        file.truncate(BYTES_MAX[name] + 1)
    with pytest.raises(LocalError, match=f"{name} is larger than {BYTES_MAX[name]} bytes"):
        ModelFiles.open(tmp_path)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"vocab_size": 1, "vocab_size": 2}', b'{"a": NaN}', b"[" * 1000])
def test_a_configuration_that_is_not_strict_json_is_refused(tmp_path: Path, text: bytes) -> None:
    (make_tiny_checkpoint(tmp_path) / "config.json").write_bytes(text)
    with pytest.raises(LocalError, match=r"cannot be used: config\.json"):
        ModelFiles.open(tmp_path)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map: asks for code"),
        ({"trust_remote_code": True}, "trust_remote_code: asks for code"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: asks for quantized"),
        ({"architectures": None}, "architectures: must be a list"),
        ({"architectures": ["A", "B"]}, "architectures: must be a list with one name"),
        ({"architectures": ["os.system('x')"]}, "architectures: must be a plain name"),
        ({"model_type": 3}, "model_type: must be a plain name"),
        ({"vocab_size": None}, "vocab_size: is missing"),
        ({"vocab_size": True}, "vocab_size: must be a whole number"),
        ({"vocab_size": 2**21}, "vocab_size: must be a whole number from 1 to 1048576"),
        ({"hidden_size": 0}, "hidden_size: must be"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: must be"),
        ({"max_position_embeddings": -1}, "max_position_embeddings: must be"),
    ],
)
def test_a_configuration_that_asks_for_code_or_nonsense_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    change(make_tiny_checkpoint(tmp_path), **values)
    with pytest.raises(LocalError) as caught:
        ModelFiles.open(tmp_path)
    assert problem in str(caught.value)


@pytest.mark.parametrize("eos", [32, -1, "12", [1.5], list(range(32)) * 3])
def test_end_tokens_outside_of_the_vocabulary_are_refused(tmp_path: Path, eos: Any) -> None:
    change(make_tiny_checkpoint(tmp_path), "generation_config.json", eos_token_id=eos)
    with pytest.raises(LocalError, match=r"generation_config\.json\.eos_token_id"):
        ModelFiles.open(tmp_path)


def test_a_tokenizer_that_is_none_is_refused_when_it_is_wanted(tmp_path: Path) -> None:
    (make_tiny_checkpoint(tmp_path) / "tokenizer.json").write_text("{}")
    files = ModelFiles.open(tmp_path)
    with pytest.raises(LocalError, match=r"tokenizer\.json of .* cannot be read"):
        files.encode_prompts(["1"])


def test_a_prompt_is_never_cut(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path)
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    change(tmp_path, "tokenizer.json", truncation=truncation)
    assert ModelFiles.open(tmp_path).encode_prompts(["12345"]) == [[1, 2, 3, 4, 5]]
