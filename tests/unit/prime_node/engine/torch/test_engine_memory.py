"""Claims about running out of memory: fewer at once, the same completions, and an error that helps at the end."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prime_node.engine.interface import GenerateRequest, Sampling, TokenSequence
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.device import choose_device, choose_precision, is_out_of_memory, names_bf16
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import parse_proofs
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint

SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=150)
ROW_BYTES = 2 * 2 * 2 * 64 * 16 * 4
"""One row of 64 tokens: keys and values of two layers, two heads of 16, in float32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"))


def open_engine(folder: Path, **settings: Any) -> TorchEngine:
    engine = TorchEngine(device="cpu", **{"precision": "float32", "batch_max": 16, **settings})
    engine.load(folder)
    return engine


def make_requests(count: int) -> list[GenerateRequest]:
    rng = np.random.default_rng(1)
    return [
        GenerateRequest(number=number, prompt=rng.integers(0, 32, rng.integers(1, 9)).astype(np.int32), seed=number)
        for number in range(count)
    ]


def test_out_of_memory_halves_the_batch_and_changes_no_output(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Eight rows of 64 tokens fit, longer ones do not: it shrinks at once, and again in the midst of writing."""
    free, short = open_engine(folder), open_engine(folder, cache_bytes=8 * ROW_BYTES)
    requests = make_requests(24)
    wanted = {completion.number: completion for completion in free.generate(requests, SAMPLING)}
    assert max(len(completion.tokens) for completion in wanted.values()) == 150
    with caplog.at_level(logging.WARNING):
        got = {completion.number: completion for completion in short.generate(requests, SAMPLING)}
    rooms = [record.args[1] for record in caplog.records if isinstance(record.args, tuple)]
    assert rooms[0] == 8
    assert len(rooms) >= 3
    assert got.keys() == wanted.keys()
    for number, completion in wanted.items():
        assert got[number].tokens.tolist() == completion.tokens.tolist()
        assert np.abs(got[number].logprobs - completion.logprobs).max() < 1e-5
    sequences = [
        TokenSequence(
            number=request.number, prompt=request.prompt, output=got[request.number].tokens, seed=request.seed
        )
        for request in requests
    ]
    for result in free.read(sequences, SAMPLING):
        proofs = parse_proofs(got[result.number].proofs, tokens=len(result.margins), hidden=64)
        assert not find_faults(verify_proofs(proofs, result.hidden_bits, seed=Digest(bytes(32))), ToplocThresholds())
    caplog.clear()
    assert len(list(short.generate(requests[:6], SAMPLING))) == 6
    assert not caplog.records, "it remembers"


def test_a_single_sequence_that_does_not_fit_is_an_error_that_says_what_to_do(folder: Path) -> None:
    engine = open_engine(folder, cache_bytes=ROW_BYTES)
    with pytest.raises(LocalError, match=r"single sequence: a cache of 1 rows of 128 tokens .* use another device"):
        list(engine.generate(make_requests(4), SAMPLING))
    short = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40)
    assert len(list(engine.generate(make_requests(4), short))) == 4


def test_out_of_memory_in_a_forward_pass_halves_its_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sizes = open_engine(folder), []
    sequences = [
        TokenSequence(number=n, prompt=np.ones(2, np.int32), output=np.full(9 + n, 5, np.int32), seed=n)
        for n in range(9)
    ]
    wanted = {result.number: result.margins.tolist() for result in engine.read(sequences, SAMPLING)}
    read = DenseModel.read

    def read_few(self: DenseModel, sequences: Any, firsts: Any) -> Any:
        if len(sequences) > 2:
            raise torch.OutOfMemoryError("no room")
        sizes.append(len(sequences))
        return read(self, sequences, firsts)

    monkeypatch.setattr(DenseModel, "read", read_few)
    got = {result.number: result.margins.tolist() for result in engine.read(sequences, SAMPLING)}
    assert got.keys() == wanted.keys()
    assert all(np.allclose(got[number], wanted[number], atol=1e-4) for number in got)
    assert max(sizes) == 2

    def read_none(self: DenseModel, sequences: Any, firsts: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(DenseModel, "read", read_none)
    with pytest.raises(LocalError, match="reading one text of 11 tokens"):
        list(engine.read(sequences, SAMPLING))


def test_other_errors_are_not_taken_for_a_lack_of_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(folder)

    def break_down(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(DenseModel, "get_logits", break_down)
    with pytest.raises(RuntimeError, match="a bug"):
        list(engine.generate(make_requests(2), SAMPLING))
    with pytest.raises(RuntimeError, match="a bug"):
        list(
            engine.read(
                [TokenSequence(number=0, prompt=np.ones(1, np.int32), output=np.ones(1, np.int32), seed=0)], SAMPLING
            )
        )


def test_running_out_is_known_in_all_its_forms() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("size mismatch"))


def test_devices_are_named_as_torch_names_them() -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(LocalError, match="there is no cuda:7: torch sees"):
        choose_device("cuda:7")
    if not torch.cuda.is_available():
        with pytest.raises(LocalError, match="there is no cuda: torch sees 0 GPUs"):
            choose_device("cuda")
    for name in ("gpu", "cuda:", "cuda:x", "mps"):
        with pytest.raises(LocalError, match="use auto, cpu, cuda, or cuda:1"):
            choose_device(name)


def test_bfloat16_needs_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_bf16("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 avx2\n")
    assert names_bf16("Features\t: fp asimd bf16\n")
    assert not names_bf16("flags\t\t: fpu avx2 avx512f\nmodel name : a bf16 one\n")
    cpu = torch.device("cpu")
    monkeypatch.setattr("prime_node.engine.torch.device.has_bf16", lambda device: False)
    assert choose_precision("bfloat16", cpu) is choose_precision("auto", cpu) is torch.float32
    monkeypatch.setattr("prime_node.engine.torch.device.has_bf16", lambda device: True)
    assert choose_precision("bfloat16", cpu) is choose_precision("auto", cpu) is torch.bfloat16
    assert choose_precision("float32", cpu) is torch.float32
    with pytest.raises(LocalError, match="use auto, float32 or bfloat16"):
        choose_precision("int8", cpu)
