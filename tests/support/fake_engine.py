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
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.child import ChildOptions, main
from prime_node.engine.interface import Completion, EngineFacts, ForwardResult, GenerateRequest, Sampling, TokenSequence
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


class NumpyEngine:
    """s = tanh(A s + E[token]), hidden = R s, logits = U hidden."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._behaviour = ""
        self._facts: EngineFacts | None = None

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
        )

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        self._behave()
        for order in orders:
            completion = self._complete(order, sampling, is_wanted)
            if completion is None:
                return
            yield completion

    def _complete(self, order: GenerateRequest, sampling: Sampling, is_wanted: Callable[[], bool]) -> Completion | None:
        state = np.zeros(self.facts.hidden, np.float32)
        for token in order.prompt:
            state = self._advance(state, int(token))
        states, tokens = [], []
        while len(tokens) < sampling.tokens_max and (not tokens or tokens[-1] not in sampling.eos):
            if not is_wanted():
                return None
            if self._behaviour == "slow":
                time.sleep(SLOW_S)
            states.append(self._out @ state)
            place = np.array([len(tokens)], np.uint32)
            seeds = np.array([order.seed], np.uint64)
            tokens.append(int(sample_tokens(self._logits(states[-1][None]), sampling.temperature, seeds, place)[0]))
            state = self._advance(state, tokens[-1])
        hidden, chosen = np.stack(states), np.array(tokens, np.int32)
        error = 1.0 if self._behaviour == "wrong" else 0.0
        return Completion(
            number=order.number,
            tokens=chosen,
            logprobs=self._logprobs(hidden, chosen, sampling) - np.float32(error),
            finish=FinishReason.EOS if tokens[-1] in sampling.eos else FinishReason.LENGTH,
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
