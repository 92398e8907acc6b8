"""Architectures outside the dense family, through transformers' own modules: slower than dense.py, same interface.

The rows of a batch have equal lengths, so that no architecture needs padding and a recurrent one carries no state over
from it. Sequences leave when they are done; others join when all have left. Nothing in a checkpoint is run as code, and
nothing is downloaded.
"""

import inspect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from prime_node.engine.interface import Generation
from prime_node.engine.torch.dense_shape import parse_head_precision
from prime_node.engine.torch.model import FolderTensors, list_names
from prime_protocol.errors import LocalError
from prime_runtime.model_files import ModelFiles

PROBE = (0, 1, 2, 3)
"""Tokens on which the head is probed."""
PROBE_TOLERANCE = 0.02
"""Relative to the largest logit: more than bfloat16 rounding, less than any difference between heads."""
DROPPED_KEYS = frozenset({"attn_implementation", "experts_implementation", "dtype", "torch_dtype", "model_type"})
"""Configuration keys about how to compute, which this machine decides."""
CACHE_NAMES = ("past_key_values", "cache_params")
"""Argument names of the cache: keys and values, or the state of a recurrence."""
OTHER_ENGINE = "set the engine to vllm for this run"


@dataclass(frozen=True, slots=True, eq=False)
class GenericModelPlan:
    """A model class of transformers, and its configuration."""

    kind: Any
    config: Any
    has_float32_head: bool


def plan_generic(files: ModelFiles, tensors: FolderTensors) -> GenericModelPlan:
    """LocalError if transformers does not know the architecture, or the tensors cannot match its configuration."""
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(files.family)
    if known != files.architecture:
        raise LocalError(
            f"this engine does not know the architecture {files.architecture} of {files.family}; "
            f"transformers {transformers.__version__} may be too old for this run"
        )
    # Keys with an underscore set private attributes of a configuration, such as kernels to download.
    plain = {key: value for key, value in files.config.items() if key[:1] != "_" and key not in DROPPED_KEYS}
    try:
        config = transformers.AutoConfig.for_model(files.family, **plain)
        kind = getattr(transformers, known)
        with torch.device("meta"):
            parameters = kind._from_config(config).num_parameters()
    except Exception as error:  # boundary: each of 178 configuration classes raises its own exceptions
        raise LocalError(f"transformers refuses the configuration in {files.folder}: {error}") from None
    # A tied head may be counted on one side only. A hostile configuration that describes more would fill the memory.
    if parameters > tensors.parameters + files.vocabulary * files.hidden:
        raise LocalError(
            f"config.json in {files.folder} describes {parameters} parameters, its tensors hold {tensors.parameters}"
        )
    return GenericModelPlan(kind, config, parse_head_precision(files))


class GenericModel:
    """A transformers model on a device."""

    def __init__(
        self, plan: GenericModelPlan, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        # We report mismatches ourselves; transformers' tables and progress bars would fill the node's log.
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._plan = plan
        self.device = device
        self._dtype = dtype
        self._model = self._make(tensors).to(device)
        self._cache_name = find_cache_name(self._model.base_model)
        self._scale, self._cap = self._probe()
        self.is_whole = True

    def swap_weights(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        """Swaps all tensors, whatever `changed` says: transformers may fuse several tensors of a file into one."""
        fresh = dict(self._make(tensors).state_dict())
        self.is_whole = False
        for name, place in self._model.state_dict().items():
            place.copy_(fresh[name])
        self.is_whole = True

    def open_batch(self, *, rows: int, length_max: int, cache_bytes: int | None) -> "GenericBatch":
        return GenericBatch(self, cache_bytes)

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        """Padding at the end of shorter sequences changes nothing: each token attends only to those before it."""
        tokens = np.zeros((len(sequences), max(map(len, sequences))), np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = sequence
        hidden, _ = self.compute(torch.from_numpy(tokens), None)
        spans = zip(hidden, firsts, sequences, strict=True)
        return torch.cat([states[first : len(sequence)] for states, first, sequence in spans])

    def compute(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Final hidden states of all tokens, and the cache."""
        kept = {self._cache_name: cache}
        outputs = self._model.base_model(input_ids=tokens.to(self.device), use_cache=True, return_dict=True, **kept)
        return outputs.last_hidden_state, getattr(outputs, self._cache_name, None)

    @property
    def kv_token_bytes(self) -> int:
        """Unknown: recurrent layers keep a state of one size."""
        return 0

    def get_logits(self, hidden: Tensor) -> Tensor:
        logits = self._multiply(hidden) * self._scale
        return logits if self._cap is None else (logits / self._cap).tanh() * self._cap

    def _multiply(self, hidden: Tensor) -> Tensor:
        head = self._model.get_output_embeddings()
        if self._plan.has_float32_head:
            bias = None if head.bias is None else head.bias.float()
            return functional.linear(hidden.float(), head.weight.float(), bias)
        product: Tensor = head(hidden.to(head.weight.dtype)).float()
        return product

    def _make(self, tensors: FolderTensors) -> Any:
        """A model from the tensors. LocalError unless all of them are used and none is initialised at random."""
        kind = self._plan.kind
        given = {name: tensors.get(name) for name in tensors.tensors}
        try:
            model, report = kind.from_pretrained(
                None,
                config=self._plan.config,
                state_dict=given,
                dtype=self._dtype,
                attn_implementation="sdpa" if kind._supports_sdpa else "eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except (ValueError, ImportError) as error:
            raise LocalError(f"transformers cannot load the checkpoint in {tensors.folder}: {error}") from None
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
            if names := sorted(map(str, report[problem])):
                raise LocalError(f"the checkpoint in {tensors.folder} does not fit: {problem} {list_names(names)}")
        return model.eval()

    def _probe(self) -> tuple[float, float | None]:
        """What the model does to the product of hidden states and head: a factor, a soft cap, or nothing.

        Determined once on a short text against the model's own logits, because every family names it differently.
        """
        text, name = torch.tensor([PROBE], device=self.device), self._plan.kind.__name__
        try:
            hidden, cache = self.compute(text, None)
            plain = self._multiply(hidden)
            wanted = self._model(input_ids=text, use_cache=False).logits.float()
        except (AttributeError, TypeError, ValueError) as error:
            raise LocalError(f"{name} does not compute as language models do here: {error}; {OTHER_ENGINE}") from None
        cap = getattr(self._plan.config, "final_logit_softcapping", None)
        scale = float((plain * wanted).sum() / (plain * plain).sum())
        for found in ((1.0, None), (1.0, cap), (scale, None)):
            self._scale, self._cap = found
            if (self.get_logits(hidden) - wanted).abs().max() <= PROBE_TOLERANCE * wanted.abs().max():
                break
        else:
            raise LocalError(f"{name} has a head that this engine does not support; {OTHER_ENGINE}")
        if cache is None:
            raise LocalError(f"{name} returns no cache that this engine supports; {OTHER_ENGINE}")
        return self._scale, self._cap


class GenericBatch:
    """Sequences of equal length at every step, in a cache of transformers."""

    def __init__(self, model: GenericModel, cache_bytes: int | None) -> None:
        self._model = model
        self._cache_bytes = cache_bytes
        self._cache: Any = None
        self._rows = 0

    def resize(self, rows: int, length_max: int) -> None:
        """The cache of transformers grows by itself."""

    def admit(self, waiting: deque[Generation], slots: int, running: Sequence[Generation]) -> list[Generation]:
        if self._cache is not None or not waiting:
            return []
        length = waiting[0].length
        joining = [generation for generation in waiting if generation.length == length][:slots]
        for generation in joining:
            waiting.remove(generation)
        return joining

    def advance(self, running: Sequence[Generation], joined: int) -> Tensor:
        self._rows = len(running)
        if joined:
            hidden = self._prefill([tuple(generation.tokens) for generation in running])
        else:
            tokens = [generation.output[-1:] for generation in running]
            hidden, self._cache = self._model.compute(torch.tensor(tokens), self._cache)
        taken = count_cache_bytes(self._cache)
        if self._cache_bytes is not None and taken > self._cache_bytes:
            raise torch.OutOfMemoryError(f"a cache of {taken} bytes, allowed are {self._cache_bytes}")
        return hidden[:, -1]

    def _prefill(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """Equal texts are computed once."""
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        hidden, self._cache = self._model.compute(torch.tensor(list(places)), None)
        if len(places) == len(texts):
            return hidden
        order = torch.tensor([places[text] for text in texts], device=self._model.device)
        self._cache.reorder_cache(order)
        return hidden[order]

    def remove_rows(self, gone: Sequence[int]) -> list[int]:
        order = [row for row in range(self._rows) if row not in gone]
        self._rows = len(order)
        if order:
            self._cache.reorder_cache(torch.tensor(order, device=self._model.device))
        else:
            self._cache = None
        return order


def find_cache_name(base: Any) -> str:
    """LocalError if the model takes none of CACHE_NAMES."""
    taken = inspect.signature(base.forward).parameters
    found = next((name for name in CACHE_NAMES if name in taken), None)
    if found is None:
        raise LocalError(f"{type(base).__name__} takes no cache that this engine supports; {OTHER_ENGINE}")
    return found


def count_cache_bytes(cache: Any) -> int:
    """Bytes of keys and values, and of the states of recurrent layers."""
    attended = [getattr(layer, name, None) for layer in cache.layers for name in ("keys", "values")]
    states = [getattr(layer, name, {}) for layer in cache.layers for name in ("conv_states", "recurrent_states")]
    tensors = [*attended, *(state for each in states for state in each.values())]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
