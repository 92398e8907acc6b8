"""The record of what vLLM did: one hidden state for each output token, in order, and nothing else passes."""

import numpy as np
import pytest

from prime_node.engine.interface import TokenSequence
from prime_node.engine.vllm.records import ForwardRecord, GenerationRecord
from prime_protocol.errors import LocalError
from prime_protocol.proofs.toploc import build_proofs

HIDDEN = 16


def make_states(tokens: int) -> np.ndarray:
    values = np.random.default_rng(tokens).standard_normal((tokens, HIDDEN), dtype=np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write(states: np.ndarray) -> GenerationRecord:
    writing = GenerationRecord(HIDDEN)
    for place, row in enumerate(states):
        writing.add(position=place, token=place + 5, logprob=-float(place), hidden_bits=row)
    return writing


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 64, 100])
def test_proofs_made_while_writing_are_those_of_the_whole_completion(tokens: int) -> None:
    states = make_states(tokens)
    writing = write(states)
    assert writing.finish() == build_proofs(states).blob
    assert writing.tokens == [place + 5 for place in range(tokens)]
    assert writing.logprobs == [-float(place) for place in range(tokens)]


@pytest.mark.parametrize("position", [2, 4])
def test_a_token_drawn_twice_or_left_out_is_refused(position: int) -> None:
    writing = write(make_states(3))
    with pytest.raises(LocalError, match=f"drew output token {position} of a completion that has 3"):
        writing.add(position=position, token=0, logprob=0.0, hidden_bits=make_states(1)[0])


def make_reading(prompt: int, output: int) -> ForwardRecord:
    tokens = np.arange(prompt + output, dtype=np.int32)
    return ForwardRecord(TokenSequence(number=7, prompt=tokens[:prompt], output=tokens[prompt:], seed=3))


@pytest.mark.parametrize("parts", [[14], [5, 9], [9, 5], [1] * 14, [4, 1, 9], [10, 4]])
def test_a_text_fed_in_parts_gives_the_states_of_its_output_once(parts: list[int]) -> None:
    reading = make_reading(prompt=5, output=10)
    assert reading.fed == list(range(14))
    states, start = make_states(14), 0
    for size in parts:
        wanted = reading.wanted(start, start + size)
        rows = states[wanted.start + reading.first : wanted.stop + reading.first]
        if len(wanted):
            reading.add(rows, np.array([[n, n + 0.25, n + 0.5] for n in wanted], np.float32).T)
        start += size
    done = reading.finish()
    assert done.number == 7
    assert np.array_equal(done.hidden_bits, states[4:])
    assert done.margins.tolist() == [float(n) for n in range(10)]
    assert done.logprobs.tolist() == [n + 0.25 for n in range(10)]
    assert done.eos_logprobs.tolist() == [n + 0.5 for n in range(10)]


def test_a_text_read_anew_from_its_start_counts_once() -> None:
    reading = make_reading(prompt=2, output=4)
    assert list(reading.wanted(0, 3)) == [0, 1]
    reading.add(make_states(2), np.zeros((3, 2), np.float32))
    assert list(reading.wanted(0, 5)) == [0, 1, 2, 3]
    reading.add(make_states(4), np.ones((3, 4), np.float32))
    assert np.array_equal(reading.finish().hidden_bits, make_states(4))


def test_a_hole_in_a_text_is_refused() -> None:
    reading = make_reading(prompt=2, output=4)
    reading.wanted(0, 2)
    with pytest.raises(LocalError, match="from token 3, expected 2"):
        reading.wanted(3, 5)


def test_a_text_not_read_to_its_end_is_refused() -> None:
    reading = make_reading(prompt=2, output=4)
    reading.add(make_states(3), np.zeros((3, 3), np.float32))
    with pytest.raises(LocalError, match="3 hidden states for 4 tokens"):
        reading.finish()
