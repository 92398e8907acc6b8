"""Claims about models outside of the dense family: transformers computes them, the engine treats them alike."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from prime_node.engine.interface import GenerateRequest, Sampling, TokenSequence
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.generic_model import GenericModel, count_cache_bytes
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import parse_proofs
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint, make_tokenizer

SHAPE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
KINDS: dict[str, dict[str, Any]] = {
    # Learned positions, other names for everything.
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},
    # A cap on the logits, layers that see a window only.
    "gemma2": {**SHAPE, "num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 2.0, "sliding_window": 8},
    # Experts, which transformers joins when it loads them.
    "mixtral": {**SHAPE, "num_key_value_heads": 2, "num_local_experts": 4},
    # No attention: a state that is carried from token to token.
    "mamba": {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
    # A factor on the logits.
    "granite": {**SHAPE, "num_key_value_heads": 2, "logits_scaling": 3.0},
}
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40)


def save_kind(folder: Path, kind: str, seed: int = 0) -> Path:
    """A checkpoint as transformers saves it, in bf16."""
    transformers.logging.disable_progress_bar()
    torch.manual_seed(seed)
    known = {"vocab_size": 32, "max_position_embeddings": 128, "initializer_range": 0.2, "eos_token_id": EOS_TOKEN}
    config = transformers.AutoConfig.for_model(kind, bos_token_id=1, pad_token_id=0, **{**known, **KINDS[kind]})
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(make_tokenizer(32)))
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_kind(tmp_path_factory.mktemp("gpt2"), "gpt2")


def open_engine(folder: Path, **settings: Any) -> TorchEngine:
    engine = TorchEngine(device="cpu", **{"precision": "float32", "batch_max": 8, **settings})
    engine.load(folder)
    assert isinstance(engine._model, GenericModel)
    return engine


def make_requests(count: int) -> list[GenerateRequest]:
    rng = np.random.default_rng(0)
    return [
        GenerateRequest(number=number, prompt=rng.integers(0, 32, 1 + number % 3).astype(np.int32), seed=number)
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_reads_what_transformers_computes_and_what_it_wrote_itself(kind: str, tmp_path: Path) -> None:
    folder = save_kind(tmp_path, kind)
    engine, requests = open_engine(folder), make_requests(10)
    done = {completion.number: completion for completion in engine.generate(requests, SAMPLING)}
    assert len({len(completion.tokens) for completion in done.values()}) > 2, "some leave before others"
    sequences = [
        TokenSequence(number=o.number, prompt=o.prompt, output=done[o.number].tokens, seed=o.seed) for o in requests
    ]
    public = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for result in engine.read(sequences, SAMPLING):
        sequence, completion = sequences[result.number], done[result.number]
        tokens = torch.tensor(np.concatenate((sequence.prompt, sequence.output))).long()
        with torch.inference_mode():
            logprobs = public(tokens[None], use_cache=False).logits[0, len(sequence.prompt) - 1 : -1].log_softmax(-1)
        wanted = logprobs.gather(1, tokens[len(sequence.prompt) :, None])[:, 0].numpy()
        assert np.abs(result.logprobs - wanted).max() < 1e-4
        assert np.abs(completion.logprobs - wanted).max() < 1e-4
        assert result.margins.max() < 1e-3
        proofs = parse_proofs(completion.proofs, tokens=len(sequence.output), hidden=64)
        assert not find_faults(verify_proofs(proofs, result.hidden_bits, seed=Digest(bytes(32))), ToplocThresholds())


def test_weights_are_swapped_in_place(gpt2: Path, tmp_path: Path) -> None:
    engine, requests = open_engine(gpt2), make_requests(3)
    assert isinstance(engine._model, GenericModel)
    storages = [place.data_ptr() for place in engine._model._model.parameters()]
    other = save_kind(tmp_path, "gpt2", seed=1)
    first = {completion.number: completion.logprobs.tolist() for completion in engine.generate(requests, SAMPLING)}
    engine.load(other)
    second = {completion.number: completion.logprobs.tolist() for completion in engine.generate(requests, SAMPLING)}
    fresh = {c.number: c.logprobs.tolist() for c in open_engine(other).generate(requests, SAMPLING)}
    assert second == fresh != first
    assert [place.data_ptr() for place in engine._model._model.parameters()] == storages


def test_tensors_that_do_not_fit_leave_the_loaded_ones(gpt2: Path, tmp_path: Path) -> None:
    engine, requests = open_engine(gpt2), make_requests(2)
    first = [completion.logprobs.tolist() for completion in engine.generate(requests, SAMPLING)]
    for name, tensor in (
        ("transformer.h.0.attn.c_proj.weight", None),
        ("transformer.h.0.attn.c_proj.weight", torch.zeros(3, 3)),
        ("surplus", torch.zeros(3)),
    ):
        tensors = load_file(gpt2 / "model.safetensors") | {name: tensor}
        other = save_kind(tmp_path, "gpt2")
        save_file({key: value for key, value in tensors.items() if value is not None}, other / "model.safetensors")
        with pytest.raises(LocalError, match=f"does not fit: .*{name}"):
            engine.load(other)
    assert [completion.logprobs.tolist() for completion in engine.generate(requests, SAMPLING)] == first


def test_goes_on_with_fewer_at_once_where_memory_is_short(gpt2: Path) -> None:
    requests = make_requests(20)
    wanted = {
        completion.number: completion.tokens.tolist() for completion in open_engine(gpt2).generate(requests, SAMPLING)
    }
    # A token takes 1 KiB: 64 keys and 64 values in each of two layers.
    short = open_engine(gpt2, cache_bytes=45 * 1024)
    got = {completion.number: completion.tokens.tolist() for completion in short.generate(requests, SAMPLING)}
    assert got == wanted
    assert short._batch_limit < 8


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "does not know the architecture"),
        ({"architectures": ["Qwen9ForCausalLM"], "model_type": "qwen9"}, "does not know the architecture"),
        ({"hidden_act": "gelu", "intermediate_size": 10**9}, "describes .* parameters, its tensors hold"),
        ({"hidden_act": "gelu", "num_attention_heads": 0}, "refuses the configuration"),
    ],
)
def test_what_transformers_does_not_know_or_cannot_be_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LocalError, match=problem):
        TorchEngine(device="cpu").load(folder)


def test_an_architecture_that_keeps_neither_keys_nor_a_known_state_is_refused(tmp_path: Path) -> None:
    KINDS["rwkv"] = {"hidden_size": 64, "num_hidden_layers": 2}
    folder = save_kind(tmp_path, "rwkv")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LocalError, match="RwkvModel takes no cache that this engine supports; set the engine to vllm"):
        TorchEngine(device="cpu").load(folder)


def test_a_state_takes_no_more_memory_however_long_the_text(tmp_path: Path) -> None:
    engine = open_engine(save_kind(tmp_path, "mamba"))
    model = engine._model
    assert isinstance(model, GenericModel)
    _, short = model.compute(torch.zeros((2, 3), dtype=torch.int64), None)
    _, long = model.compute(torch.zeros((2, 30), dtype=torch.int64), None)
    # Two layers, two rows, 128 channels: the last 4 inputs and 8 numbers of state each, in float32.
    assert count_cache_bytes(short) == count_cache_bytes(long) == 2 * 2 * 128 * (4 + 8) * 4
