"""A small engine of numpy alone, behind the real pipe: `python fake_engine.py OPTIONS`, as prime_node.engine.child.

It is honest: a recurrent model whose hidden states give logits, proofs and margins as those of any engine. Its weights
follow from the bytes of the checkpoint's `model.safetensors`, its width and end tokens from its config.json. A file
`behaviour` in the checkpoint's folder makes it misbehave: `die`, `die once`, `hang`, `raise` or `refuse` with a job,
work `slow`, or give `wrong` log-probs.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.batches import generate_batch
from prime_node.engine.child import ChildOptions, main
from prime_node.engine.interface import (
    Completion,
    EngineCapacity,
    EngineFacts,
    EngineQueue,
    ForwardResult,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_protocol.errors import LocalError
from prime_protocol.proofs.sampling import compute_margins, sample_tokens
from prime_protocol.proofs.toploc import build_proofs
from prime_protocol.rollouts.rollout import FinishReason

Floats = NDArray[np.float32]
SLOW_S = 0.02
"""For each token."""


def to_bits(values: Floats) -> NDArray[np.uint16]:
    """The nearest bf16 patterns."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


SEQUENCES_MAX, KV_TOKENS = 4, 4096


@dataclass(slots=True, eq=False)
class FakeRow:
    """A completion in progress."""

    order: GenerateRequest
    sampling: Sampling
    state: Floats
    states: list[Floats] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        return len(self.tokens) == self.sampling.tokens_max or (
            bool(self.tokens) and self.tokens[-1] in self.sampling.eos
        )


class NumpyEngine:
    """s = tanh(A s + E[token]), hidden = R s, logits = U hidden."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._behaviour = ""
        self._facts: EngineFacts | None = None
        self._rows: list[FakeRow] = []

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None
        return self._facts

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        config = json.loads((checkpoint / "config.json").read_text())
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        seed = int.from_bytes(sha256((checkpoint / "model.safetensors").read_bytes()).digest()[:8], "big")
        dice = np.random.default_rng(seed)
        self._step = dice.standard_normal((hidden, hidden), dtype=np.float32) / np.sqrt(hidden)
        self._embedding = dice.standard_normal((vocabulary, hidden), dtype=np.float32)
        self._out = dice.standard_normal((hidden, hidden), dtype=np.float32) / np.sqrt(hidden)
        self._head = dice.standard_normal((hidden, vocabulary), dtype=np.float32) / np.sqrt(hidden)
        self._mark = checkpoint / "behaviour"
        self._behaviour = self._mark.read_text() if self._mark.exists() else ""
        self._facts = EngineFacts(
            engine="numpy",
            device="cpu",
            precision=self._options.precision,
            hidden=hidden,
            vocabulary=vocabulary,
            context_max=config["max_position_embeddings"],
            version="1.26.4",
            attention="none",
            device_model="cpu",
        )

    @property
    def capacity(self) -> EngineCapacity:
        return EngineCapacity(sequences_max=SEQUENCES_MAX, kv_tokens=KV_TOKENS)

    @property
    def queue(self) -> EngineQueue:
        running = min(SEQUENCES_MAX, len(self._rows))
        return EngineQueue(running=running, waiting=len(self._rows) - running)

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        return generate_batch(self, orders, sampling, is_wanted)

    def add(self, orders: Sequence[GenerateRequest], sampling: Sampling) -> None:
        self._behave()
        for order in orders:
            row = FakeRow(order, sampling, np.zeros(self.facts.hidden, np.float32))
            for token in order.prompt:
                row.state = self._advance(row.state, int(token))
            self._rows.append(row)

    def step(self) -> list[Completion]:
        if self._behaviour == "slow":
            time.sleep(SLOW_S)
        for row in self._rows[:SEQUENCES_MAX]:
            row.states.append(self._out @ row.state)
            place = np.array([len(row.tokens)], np.uint32)
            seeds = np.array([row.order.seed], np.uint64)
            logits = self._logits(row.states[-1][None])
            row.tokens.append(int(sample_tokens(logits, row.sampling.temperature, seeds, place)[0]))
            row.state = self._advance(row.state, row.tokens[-1])
        done = [row for row in self._rows if row.is_over]
        self._rows = [row for row in self._rows if not row.is_over]
        return [self._complete(row) for row in done]

    def cancel(self, numbers: Collection[int]) -> None:
        self._rows = [row for row in self._rows if row.order.number not in numbers]

    def _complete(self, row: FakeRow) -> Completion:
        hidden, chosen = np.stack(row.states), np.array(row.tokens, np.int32)
        error = 1.0 if self._behaviour in ("wrong", f"wrong row {row.order.number}") else 0.0
        return Completion(
            number=row.order.number,
            tokens=chosen,
            logprobs=self._logprobs(hidden, chosen, row.sampling) - np.float32(error),
            finish=FinishReason.EOS if row.tokens[-1] in row.sampling.eos else FinishReason.LENGTH,
            proofs=build_proofs(to_bits(hidden)).blob,
        )

    def read(self, texts: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        self._behave()
        for text in texts:
            state = np.zeros(self.facts.hidden, np.float32)
            for token in text.prompt:
                state = self._advance(state, int(token))
            states = []
            for token in text.output:
                states.append(self._out @ state)
                state = self._advance(state, int(token))
            hidden = np.stack(states)
            logits = self._logits(hidden)
            length = len(text.output)
            seeds = np.full(length, text.seed, np.uint64)
            margins = compute_margins(logits, text.output, seeds, np.arange(length), sampling.temperature)
            ends = log_softmax(logits / (sampling.temperature or 1.0))[:, sorted(sampling.eos)]
            yield ForwardResult(
                number=text.number,
                hidden_bits=to_bits(hidden),
                margins=margins.astype(np.float32),
                logprobs=self._logprobs(hidden, text.output, sampling),
                eos_logprobs=ends.max(axis=1),
            )

    def _advance(self, state: Floats, token: int) -> Floats:
        moved: Floats = np.tanh(self._step @ state + self._embedding[token])
        return moved

    def _logits(self, states: Floats) -> Floats:
        # Row by row, so that the same state gives the same bits whatever it is read with.
        return np.stack([state @ self._head for state in states])

    def _logprobs(self, states: Floats, tokens: NDArray[Any], sampling: Sampling) -> Floats:
        logprobs = log_softmax(self._logits(states) / (sampling.temperature or 1.0))
        return np.minimum(logprobs[range(len(tokens)), tokens], 0.0).astype(np.float32)

    def _behave(self) -> None:
        print("an engine's library prints to standard output")
        match self._behaviour:
            case "die":
                print("out of memory, says the device", file=sys.stderr, flush=True)
                os._exit(7)
            case "die once":
                self._mark.unlink()
                os._exit(7)
            case "hang":
                threading.Event().wait()
            case "raise":
                raise RuntimeError("nobody foresaw this")
            case "refuse":
                raise LocalError("this machine has not enough memory for one row")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], NumpyEngine))
