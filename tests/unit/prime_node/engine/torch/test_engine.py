"""Claims about the torch engine: its numbers are those of transformers, whoever else is in the batch."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from prime_node.engine.interface import (
    Completion,
    EngineQueue,
    ForwardResult,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.sampling import sample_tokens
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import build_proofs, parse_proofs, tensor_to_bits
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3", "head_dim": 32, "tied": False, "attention_bias": True},
    "llama": {"family": "llama", "rope": LLAMA3, "attention_bias": True, "mlp_bias": True, "kv_heads": 1},
    "mistral": {
        "family": "mistral",
        "rope": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        "kv_heads": 4,
    },
}
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=70)
GREEDY = Sampling(temperature=0.0, eos=frozenset({EOS_TOKEN, 3}), tokens_max=12)
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make_tiny_checkpoint(tmp_path_factory.mktemp(name), **values) for name, values in MODELS.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> TorchEngine:
    """With Qwen2, for the claims where the family does not matter. Nobody loads anything else into it."""
    return open_engine(folders["qwen2"])


def open_engine(folder: Path, **settings: Any) -> TorchEngine:
    engine = TorchEngine(device="cpu", **{"precision": "float32", "batch_max": 8, **settings})
    engine.load(folder)
    return engine


def make_requests(count: int, seed: int = 0) -> list[GenerateRequest]:
    """Prompts of 1 to 20 tokens."""
    rng = np.random.default_rng(seed)
    return [
        GenerateRequest(
            number=number,
            prompt=rng.integers(0, 32, rng.integers(1, 21)).astype(np.int32),
            seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        )
        for number in range(count)
    ]


def generate(
    engine: TorchEngine, requests: Sequence[GenerateRequest], sampling: Sampling = SAMPLING
) -> dict[int, Completion]:
    done = {completion.number: completion for completion in engine.generate(requests, sampling)}
    assert done.keys() == {request.number for request in requests}
    return done


def read(
    engine: TorchEngine, sequences: Sequence[TokenSequence], sampling: Sampling = SAMPLING
) -> dict[int, ForwardResult]:
    results = {result.number: result for result in engine.read(sequences, sampling)}
    assert results.keys() == {sequence.number for sequence in sequences}
    return results


def make_sequences(requests: Sequence[GenerateRequest], done: dict[int, Completion]) -> list[TokenSequence]:
    return [
        TokenSequence(number=o.number, prompt=o.prompt, output=done[o.number].tokens, seed=o.seed) for o in requests
    ]


def open_public(folder: Path) -> Any:
    """The same model in transformers."""
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def generate_naively(model: Any, request: GenerateRequest, sampling: Sampling) -> tuple[list[int], list[float], Floats]:
    """One sequence by itself, everything computed anew for each token: tokens, log-probs, hidden states."""
    tokens, logprobs, states = request.prompt.tolist(), [], []
    while True:
        with torch.inference_mode():
            seen = model.base_model(torch.tensor([tokens])).last_hidden_state[0, -1:]
            logits = model.lm_head(seen).numpy()
        position = len(tokens) - len(request.prompt)
        token = int(
            sample_tokens(logits, sampling.temperature, np.array([request.seed], np.uint64), np.array([position]))[0]
        )
        scores = logits[0] / (sampling.temperature or 1.0)
        logprobs.append(float(scores[token] - np.log(np.exp(scores).sum())))
        states.append(seen.numpy()[0])
        tokens.append(token)
        if token in sampling.eos or position + 1 == sampling.tokens_max:
            return tokens[len(request.prompt) :], logprobs, np.stack(states)


@pytest.mark.parametrize("name", MODELS)
def test_generates_and_scores_as_transformers_does(name: str, folders: dict[str, Path]) -> None:
    engine, public, requests = open_engine(folders[name]), open_public(folders[name]), make_requests(12)
    assert isinstance(engine._model, DenseModel), "the fast way is taken"
    sampling = Sampling(temperature=0.9, eos=frozenset({EOS_TOKEN}), tokens_max=36)
    done = generate(engine, requests, sampling)
    results = read(engine, make_sequences(requests, done), sampling)
    assert len({len(completion.tokens) for completion in done.values()}) > 2, "lengths differ"
    for request in requests:
        tokens, logprobs, states = generate_naively(public, request, sampling)
        completion, result = done[request.number], results[request.number]
        assert completion.tokens.tolist() == tokens
        assert np.abs(completion.logprobs - logprobs).max() < 1e-5
        assert np.abs(result.logprobs - logprobs).max() < 1e-5
        assert result.margins.max() < 1e-4
        seen = (result.hidden_bits.astype(np.uint32) << 16).view(np.float32)
        assert np.abs(seen - states).max() <= np.abs(states).max() / 128, "but for the rounding to bf16"
        close = build_proofs(tensor_to_bits(torch.from_numpy(states).bfloat16()))
        reports = verify_proofs(close, result.hidden_bits, seed=Digest(bytes(32)))
        assert max(report.mantissa_error_mean for report in reports) < 0.2


def test_greedy_takes_the_likeliest_token_and_any_of_the_end_tokens(folders: dict[str, Path]) -> None:
    engine, public, requests = open_engine(folders["qwen3"]), open_public(folders["qwen3"]), make_requests(10, seed=3)
    done = generate(engine, requests, GREEDY)
    for request in requests:
        tokens, logprobs, _ = generate_naively(public, request, GREEDY)
        assert done[request.number].tokens.tolist() == tokens
        assert np.abs(done[request.number].logprobs - logprobs).max() < 1e-5
    assert read(engine, make_sequences(requests, done), GREEDY)[0].margins.max() < 1e-5


def test_a_completion_ends_with_its_end_token_or_at_the_limit(engine: TorchEngine) -> None:
    done = generate(engine, make_requests(40))
    assert {completion.finish for completion in done.values()} == {FinishReason.EOS, FinishReason.LENGTH}
    for completion in done.values():
        ends = np.flatnonzero(completion.tokens == EOS_TOKEN).tolist()
        is_eos = completion.finish is FinishReason.EOS
        assert ends == ([len(completion.tokens) - 1] if is_eos else [])
        assert is_eos or len(completion.tokens) == SAMPLING.tokens_max
        assert completion.tokens.dtype == np.int32
        assert completion.logprobs.dtype == np.float32
        assert completion.logprobs.max() <= 0


@pytest.mark.parametrize("batch_max", [1, 3, 64])
def test_a_completion_does_not_depend_on_who_else_is_in_the_batch(
    batch_max: int, engine: TorchEngine, folders: dict[str, Path]
) -> None:
    requests = make_requests(14, seed=1)
    one, other = (
        generate(engine, requests),
        generate(open_engine(folders["qwen2"], batch_max=batch_max), requests[::-1]),
    )
    for number, completion in one.items():
        assert other[number].tokens.tolist() == completion.tokens.tolist()
        assert np.abs(other[number].logprobs - completion.logprobs).max() < 1e-5


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_generates_the_same_without_compiled_kernels(
    name: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = make_requests(30, seed=8)
    one = generate(open_engine(folders[name]), requests)
    for kernel in ("get_decode_kernel", "get_prefill_kernel"):
        monkeypatch.setattr(f"prime_node.engine.torch.attention.{kernel}", lambda: None)
    other = generate(open_engine(folders[name]), requests)
    for number, completion in one.items():
        assert other[number].tokens.tolist() == completion.tokens.tolist()
        assert np.abs(other[number].logprobs - completion.logprobs).max() < 1e-5


def test_proofs_match_its_own_forward_pass_and_no_other(engine: TorchEngine) -> None:
    requests = make_requests(40, seed=2)
    done = generate(engine, requests)
    results = read(engine, make_sequences(requests, done))
    lengths = {len(completion.tokens) for completion in done.values()}
    assert min(lengths) < 32 < max(lengths), "short ones, and ones of several chunks"
    for number, completion in done.items():
        proofs = parse_proofs(completion.proofs, tokens=len(completion.tokens), hidden=64)
        reports = verify_proofs(proofs, results[number].hidden_bits, seed=Digest(bytes(32)))
        assert not find_faults(reports, ToplocThresholds(exponent_mismatches_max=4, mantissa_error_mean_max=0.5))
        other = results[(number + 1) % 40].hidden_bits
        if len(other) == len(completion.tokens):
            assert find_faults(verify_proofs(proofs, other, seed=Digest(bytes(32))), ToplocThresholds())


def test_forward_pass_gives_the_margin_of_a_token_that_was_not_drawn(engine: TorchEngine) -> None:
    (request,) = make_requests(1)
    (sequence,) = make_sequences([request], generate(engine, [request]))
    forged = sequence.output.copy()
    forged[-1] = (forged[-1] + 1) % 32
    changed = TokenSequence(number=0, prompt=sequence.prompt, output=forged, seed=sequence.seed)
    honest, lie = read(engine, [sequence])[0], read(engine, [changed])[0]
    assert honest.margins.max() < 1e-4
    assert lie.margins[-1] > 0.01
    assert np.abs(lie.margins[:-1]).max() < 1e-4
    assert np.array_equal(honest.hidden_bits, lie.hidden_bits), "what was drawn comes after what it was drawn from"


def test_forward_pass_gives_the_end_tokens_log_prob(engine: TorchEngine, folders: dict[str, Path]) -> None:
    public, (request,) = open_public(folders["qwen2"]), make_requests(1, seed=9)
    (sequence,) = make_sequences([request], generate(engine, [request]))
    tokens = torch.tensor(np.concatenate((sequence.prompt, sequence.output))).long()[None]
    with torch.inference_mode():
        logprobs = public(tokens).logits[0, len(sequence.prompt) - 1 : -1].div(2.0).log_softmax(-1)
    cooler = Sampling(temperature=2.0, eos=frozenset({4, EOS_TOKEN}), tokens_max=70)
    wanted = logprobs[:, [4, EOS_TOKEN]].amax(dim=1).numpy()
    assert np.abs(read(engine, [sequence], cooler)[0].eos_logprobs - wanted).max() < 1e-5
    endless = Sampling(temperature=2.0, eos=frozenset(), tokens_max=70)
    assert np.isfinite(read(engine, [sequence], endless)[0].eos_logprobs).all()


def test_scoring_a_large_vocabulary_in_pieces_changes_nothing(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = make_requests(6, seed=4)
    sequences = make_sequences(requests, generate(engine, requests))
    whole = read(engine, sequences)
    monkeypatch.setattr("prime_node.engine.torch.forward.LOGITS_MAX", {"cpu": 7 * 32})
    for number, result in read(engine, sequences).items():
        assert np.array_equal(result.hidden_bits, whole[number].hidden_bits)
        assert np.abs(result.margins - whole[number].margins).max() < 1e-4
        assert np.abs(result.logprobs - whole[number].logprobs).max() < 1e-5


def test_stops_as_soon_as_the_job_is_not_wanted(engine: TorchEngine) -> None:
    wanted = iter([True] * 30)
    done = list(engine.generate(make_requests(40), SAMPLING, lambda: next(wanted, False)))
    assert 0 < len(done) < 20
    assert len(generate(engine, make_requests(3))) == 3, "and goes on with other work"


def test_rows_that_join_a_running_batch_get_what_they_get_alone(folders: dict[str, Path]) -> None:
    """Two jobs of which the second joins when rows of the first are half done; a third is read and a fourth dropped."""
    engine = open_engine(folders["qwen2"], batch_max=6)
    requests = make_requests(14, seed=9)
    alone = {number: done.tokens.tolist() for number, done in generate(engine, requests).items()}
    readings = read(engine, make_sequences(requests[:2], generate(engine, requests[:2])))
    engine.add(requests[:2], SAMPLING)
    done = [completion for _ in range(3) for completion in engine.step()]
    assert engine.queue.running == 2
    engine.add(requests[2:], SAMPLING)
    done += engine.step()
    assert engine.queue.running == 6, "the others wait"
    engine.cancel({3, 13})
    texts = make_sequences(requests[:2], {done.number: done for done in engine_alone(folders, requests[:2])})
    for number, result in read(engine, texts).items():
        assert np.array_equal(result.hidden_bits, readings[number].hidden_bits)
    busiest = 0
    while engine.queue != EngineQueue():
        done += engine.step()
        busiest = max(busiest, engine.queue.running)
    assert busiest >= 6, "the batch does not drain"
    assert {each.number: each.tokens.tolist() for each in done} == {
        number: tokens for number, tokens in alone.items() if number not in (3, 13)
    }
    texts = make_sequences([r for r in requests if r.number not in (3, 13)], {each.number: each for each in done})
    results = read(engine, texts)
    for each in done:
        proofs = parse_proofs(each.proofs, tokens=len(each.tokens), hidden=64)
        faults = find_faults(
            verify_proofs(proofs, results[each.number].hidden_bits, seed=Digest(bytes(32))), ToplocThresholds()
        )
        assert not faults


def test_pages_of_dropped_rows_are_used_again(folders: dict[str, Path]) -> None:
    engine = open_engine(folders["qwen2"], batch_max=3)
    endless = Sampling(temperature=1.0, eos=frozenset(), tokens_max=70)
    engine.add(make_requests(1), endless)
    for start in range(1, 200, 4):
        requests = [replace(each, number=start + n) for n, each in enumerate(make_requests(4, seed=start))]
        engine.add(requests, endless)
        for _ in range(start % 37):
            engine.step()
        engine.cancel({request.number for request in requests})
        assert engine.queue.waiting == 0
    engine.cancel({0})
    assert engine.queue == EngineQueue()
    assert len(generate(engine, make_requests(5))) == 5


def engine_alone(folders: dict[str, Path], requests: Sequence[GenerateRequest]) -> list[Completion]:
    return list(open_engine(folders["qwen2"]).generate(requests, SAMPLING))


def test_bfloat16_is_close_to_float32(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_node.engine.torch.device.has_bf16", lambda device: True)
    half, full = open_engine(folders["llama"], precision="bfloat16"), open_engine(folders["llama"])
    assert half.facts.precision == "bfloat16"
    requests = make_requests(6, seed=5)
    done = generate(half, requests)
    for number, result in read(full, make_sequences(requests, done)).items():
        assert result.margins.max() < 0.1
        assert np.abs(result.logprobs - done[number].logprobs).max() < 0.1


def test_facts_say_what_is_loaded(folders: dict[str, Path]) -> None:
    engine = TorchEngine(device="cpu")
    with pytest.raises(LocalError, match="no checkpoint is loaded"):
        _ = engine.facts
    with pytest.raises(LocalError, match="no checkpoint is loaded"):
        list(engine.generate(make_requests(1), SAMPLING))
    engine.load(folders["mistral"])
    assert (engine.facts.engine, engine.facts.device) == ("torch", "cpu")
    assert (engine.facts.hidden, engine.facts.vocabulary, engine.facts.context_max) == (64, 32, 2048)


@pytest.mark.parametrize(
    ("prompt", "tokens_max", "problem"),
    [
        ([], 5, "no prompt"),
        ([32], 5, "outside the vocabulary of 32"),
        ([-1], 5, "outside the vocabulary of 32"),
        ([1], 2048, "is 2048 tokens"),
    ],
)
def test_requests_that_the_model_cannot_answer_are_refused(
    engine: TorchEngine, prompt: list[int], tokens_max: int, problem: str
) -> None:
    request = GenerateRequest(number=0, prompt=np.array(prompt, np.int32), seed=0)
    with pytest.raises(LocalError, match=problem):
        list(engine.generate([request], Sampling(temperature=1.0, eos=frozenset(), tokens_max=tokens_max)))


@pytest.mark.parametrize(("prompt", "output"), [([], [1]), ([1], []), ([1], [32]), ([-1], [1]), ([1], [1] * 2048)])
def test_sequences_that_no_model_could_have_generated_are_the_workers_fault(
    engine: TorchEngine, prompt: list[int], output: list[int]
) -> None:
    sequence = TokenSequence(number=7, prompt=np.array(prompt, np.int32), output=np.array(output, np.int32), seed=0)
    with pytest.raises(RemoteError, match=r"rows\[7\]"):
        list(engine.read([sequence], SAMPLING))


def test_nothing_to_do_is_no_work(engine: TorchEngine) -> None:
    assert generate(engine, []) == {}
    assert read(engine, []) == {}


def test_configurations_of_other_ways_are_not_taken_for_the_dense_family(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
    folder = make_tiny_checkpoint(tmp_path, family="llama", rope=yarn)
    engine, public, requests = open_engine(folder), open_public(folder), make_requests(3, seed=6)
    assert not isinstance(engine._model, DenseModel)
    done = generate(engine, requests)
    for request in requests:
        assert done[request.number].tokens.tolist() == generate_naively(public, request, SAMPLING)[0]


def test_older_configurations_say_the_same_in_other_words(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder = make_tiny_checkpoint(tmp_path, **MODELS["llama"])
    config = json.loads((folder / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (folder / "config.json").write_text(json.dumps(config))
    requests = make_requests(4, seed=7)
    one, other = generate(open_engine(folder), requests), generate(open_engine(folders["llama"]), requests)
    assert all(np.array_equal(one[number].logprobs, other[number].logprobs) for number in one)
