"""vLLM as an engine: in this process, with our sampling, our record of hidden states, and weights swapped in place.

vLLM schedules, keeps the cache and runs the model; vllm_worker.py draws the tokens and takes the hidden states.
Requests are handed over a batch at a time, so that a machine which runs out of memory can go on with a smaller one.
"""

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from prime_node.engine.seam import Completion, EngineFacts, Order, Reading, Sampling, Text
from prime_node.engine.torch_device import choose_precision, is_out_of_memory
from prime_node.engine.torch_reading import check_texts
from prime_node.engine.torch_weights import FolderTensors
from prime_node.engine.vllm_record import ReadingSoFar, WritingSoFar
from prime_node.engine.vllm_start import BATCH_MAX, Limits, choose_vllm_device, start
from prime_node.engine.vllm_weights import whole_layers
from prime_node.engine.writing import check_orders
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest
from prime_protocol.rollouts import Finish
from prime_runtime.model_files import ModelFiles

log = logging.getLogger(__name__)

Item = TypeVar("Item", Order, Text)


class VllmEngine:
    """One model in vLLM on one device."""

    def __init__(
        self,
        *,
        device: str = "auto",
        precision: str = "float32",
        threads: int = 1,
        batch_max: int | None = None,
        step_tokens: int | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self._device = choose_vllm_device(device)
        self._dtype = choose_precision(precision, self._device)
        self._limits = Limits(batch_max=batch_max, step_tokens=step_tokens, cache_bytes=cache_bytes)
        self._room = batch_max or BATCH_MAX
        """Requests at once. It shrinks where memory runs out, and does not grow again."""
        self._llm: LLMEngine | None = None
        self._files: Digest | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._numbers = count()

    @property
    def facts(self) -> EngineFacts:
        config = self._loaded().model_config
        return EngineFacts(
            engine="vllm",
            device=str(self._device),
            precision=str(self._dtype).removeprefix("torch."),
            hidden=config.get_hidden_size(),
            vocabulary=config.get_vocab_size(),
            context_max=config.max_model_len,
        )

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        files, tensors = ModelFiles.open(checkpoint), FolderTensors.open(checkpoint)
        is_swap = self._llm is not None and files.digest == self._files
        # If it breaks off, nothing is computed until another one was loaded whole.
        self._files = None
        if is_swap:
            self._swap(tensors, changed)
        else:
            self._begin(checkpoint, tensors)
        self._files = files.digest

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        self._check_whole()
        yield from self._write(orders, sampling, is_wanted)

    def read(self, texts: Sequence[Text], sampling: Sampling) -> Iterator[Reading]:
        self._check_whole()
        facts = self.facts
        check_texts(texts, vocabulary=facts.vocabulary, context_max=facts.context_max)
        self._ask("prime_begin", sampling)
        # Where the cache already has the tokens, as after writing them, vLLM would not compute their hidden states.
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_reading_prefix_cache=True,
        )

        def submit(text: Text, name: str) -> str:
            inner: str = self._loaded().add_request(name, {"prompt_token_ids": ReadingSoFar(text).fed}, params)
            self._ask("prime_read", inner, text)
            return inner

        for _, inner, _ in self._run(texts, submit, lambda: True):
            yield self._ask("prime_take_reading", inner)

    # --- Weights ----------------------------------------------------------------------------------------------------

    def _begin(self, checkpoint: Path, tensors: FolderTensors) -> None:
        """Start vLLM with this model; another one leaves first."""
        if self._llm is not None:
            self._llm.engine_core.shutdown()
            self._llm = None
            gc.collect()
            free_memory()
        self._llm = start(checkpoint, device=self._device, dtype=self._dtype, limits=self._limits)
        self._shapes = {name: span.shape for name, (span, _) in tensors.tensors.items()}
        # One token, because vLLM finds out at the first step what its kernels cannot run.
        order = Order(number=0, prompt=np.zeros(1, np.int32), seed=0)
        try:
            self._ask("prime_install", self.facts.hidden)
            list(self._write([order], Sampling(temperature=0.0, eos=frozenset(), tokens_max=1), lambda: True))
        except (RuntimeError, ValueError) as error:
            raise LocalError(f"vLLM cannot run the model in {checkpoint}: {error}") from error

    def _swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        # vLLM says nothing about a tensor that it does not find.
        tensors.check(self._shapes)
        self._ask("prime_load", tensors, None if changed is None else whole_layers(changed, self._shapes))
        if not self._loaded().reset_prefix_cache():
            raise LocalError("vLLM did not forget what it computed with the old weights: restart the engine")

    # --- Requests ---------------------------------------------------------------------------------------------------

    def _write(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool]
    ) -> Iterator[Completion]:
        facts = self.facts
        check_orders(orders, sampling, vocabulary=facts.vocabulary, context_max=facts.context_max)
        self._ask("prime_begin", sampling)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=sampling.tokens_max,
            stop_token_ids=sorted(sampling.eos),
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

        def submit(order: Order, name: str) -> str:
            inner: str = self._loaded().add_request(name, {"prompt_token_ids": order.prompt.tolist()}, params)
            self._ask("prime_write", inner, order.seed)
            return inner

        for order, inner, tokens in self._run(orders, submit, is_wanted):
            yield to_completion(order, tokens, self._ask("prime_take", inner), sampling)

    def _run(
        self, items: Sequence[Item], submit: Callable[[Item, str], str], is_wanted: Callable[[], bool]
    ) -> Iterator[tuple[Item, str, list[int]]]:
        """Items with vLLM's inner name of their request and the tokens it wrote, in the order they get done."""
        llm, waiting = self._loaded(), deque(items)
        running: dict[str, tuple[Item, str]] = {}
        try:
            while (waiting or running) and is_wanted():
                while waiting and len(running) < self._room:
                    name, item = str(next(self._numbers)), waiting.popleft()
                    running[name] = item, submit(item, name)
                try:
                    outputs = llm.step()
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    self._shrink(len(running))
                    llm.abort_request(list(running))
                    waiting.extendleft(item for item, _ in reversed(running.values()))
                    running.clear()
                    continue
                for output in outputs:
                    item, inner = running.pop(output.request_id)
                    yield item, inner, list(output.outputs[0].token_ids)
        finally:
            llm.abort_request(list(running))

    def _shrink(self, running: int) -> None:
        if running == 1:
            raise LocalError("not enough memory for one completion: use a smaller model, or a device with more memory")
        self._room = max(1, running // 2)
        log.warning("out of memory with %d requests at once; going on with %d", running, self._room)
        free_memory()

    def _ask(self, method: str, *args: Any) -> Any:
        """Call a method of vllm_worker.PrimeWorker."""
        return self._loaded().collective_rpc(method, args=args)[0]

    def _loaded(self) -> LLMEngine:
        assert self._llm is not None, "load comes first"
        return self._llm

    def _check_whole(self) -> None:
        if self._files is None:
            raise LocalError("no checkpoint is loaded whole: load one")


def to_completion(order: Order, tokens: list[int], seen: WritingSoFar, sampling: Sampling) -> Completion:
    """What vLLM says it wrote, with what we saw of it. The two must agree."""
    if tokens != seen.tokens:
        raise LocalError(
            f"vLLM wrote {len(tokens)} tokens and {len(seen.tokens)} were drawn: this version of vLLM is not supported"
        )
    is_ended = tokens[-1] in sampling.eos
    assert is_ended or len(tokens) == sampling.tokens_max
    return Completion(
        number=order.number,
        tokens=np.array(tokens, np.int32),
        logprobs=np.array(seen.logprobs, np.float32),
        finish=Finish.EOS if is_ended else Finish.LENGTH,
        proofs=seen.finish(),
    )


def free_memory() -> None:
    """What torch holds back of a GPU's memory may be in pieces that do not fit any more."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
