"""Cheats about the model: cheaper weights, a cheaper cache, a smaller model, a truncated distribution. Needs torch.

Changed weights are written to a checkpoint folder of their own, which the honest engine then loads. Quantised weights
are the values that a quantised kernel computes with, stored in float32: the output is the same, only no faster.
"""

import json
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from prime_lab.cheats.engines import Cheat
from prime_node.engine.interface import Completion, Engine, GenerateRequest, Sampling
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.model import FolderTensors
from prime_protocol.errors import LocalError

GROUP = 32
"""Weights that share a scale in the 4-bit formats in use."""
FP8_MAX = 448.0
"""Largest float8_e4m3fn."""
LEARNING_RATE = 1e-3
"""How far one update of the devnet's recipe moves a weight."""
TOP_K = 8
TENSORS = "model.safetensors"


# --- Weights --------------------------------------------------------------------------------------------------------


def copy_settings(checkpoint: Path, out: Path) -> None:
    """All files of a checkpoint but the weights, into a new folder."""
    out.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copy(path, out)


def write_modified_checkpoint(checkpoint: Path, out: Path, change: Callable[[str, Tensor], Tensor]) -> Path:
    """A copy of a checkpoint folder with every tensor changed, in float32."""
    from safetensors.torch import save_file

    copy_settings(checkpoint, out)
    tensors = FolderTensors.open(checkpoint)
    bent = {name: change(name, tensors.get(name).float()).contiguous() for name in tensors.tensors}
    save_file(bent, out / TENSORS)
    return out


def is_matrix(name: str, weight: Tensor) -> bool:
    """Quantised kernels quantise the matrices of the layers only."""
    return "_proj" in name and weight.dim() == 2


def quantise(weight: Tensor, levels: int) -> Tensor:
    """Round each row to its own symmetric grid of `levels` steps to either side."""
    scale = weight.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / levels
    return (weight / scale).round().clamp(-levels, levels) * scale


def quantise_int8(name: str, weight: Tensor) -> Tensor:
    return quantise(weight, 127) if is_matrix(name, weight) else weight


def quantise_int4(name: str, weight: Tensor) -> Tensor:
    """Groups of 32 weights share a scale, as in common formats."""
    if not is_matrix(name, weight):
        return weight
    groups = weight.unflatten(1, (-1, min(GROUP, weight.shape[1])))
    return quantise(groups, 7).flatten(1)


def quantise_fp8(name: str, weight: Tensor) -> Tensor:
    return round_to_fp8(weight, weight.abs().amax()) if is_matrix(name, weight) else weight


def round_to_fp8(values: Tensor, largest: Tensor) -> Tensor:
    scale = largest.clamp(min=1e-12) / FP8_MAX
    return (values / scale).to(torch.float8_e4m3fn).float() * scale


def redraw_weights(name: str, weight: Tensor) -> Tensor:
    """Another model of the same shape and spread."""
    if weight.dim() != 2:
        return weight
    rng = torch.Generator().manual_seed(len(name) + weight.numel())
    return torch.randn(weight.shape, generator=rng) * weight.std()


def undo_update(name: str, weight: Tensor, rate: float = LEARNING_RATE) -> Tensor:
    """The weights before the last Adam update, which moves each by about the learning rate; rounded to bf16."""
    rng = torch.Generator().manual_seed(weight.numel())
    moved = weight - rate * torch.randn(weight.shape, generator=rng).sign()
    return moved.to(torch.bfloat16).float()


class ModifiedWeights(Cheat):
    """Loads weights other than the checkpoint's."""

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        with tempfile.TemporaryDirectory(prefix="prime-cheat-") as folder:
            self._honest.load(write_modified_checkpoint(checkpoint, Path(folder) / "bent", self.change))

    @abstractmethod
    def change(self, name: str, weight: Tensor) -> Tensor: ...


class Int8Weights(ModifiedWeights):
    """Half the memory and up to twice the speed."""

    def change(self, name: str, weight: Tensor) -> Tensor:
        return quantise_int8(name, weight)


class Int4Weights(ModifiedWeights):
    """A quarter of the memory."""

    def change(self, name: str, weight: Tensor) -> Tensor:
        return quantise_int4(name, weight)


class Fp8Weights(ModifiedWeights):
    """The fastest format of newer GPUs."""

    def change(self, name: str, weight: Tensor) -> Tensor:
        return quantise_fp8(name, weight)


class OtherModel(ModifiedWeights):
    """Another model of the same shape, which needs no download."""

    def change(self, name: str, weight: Tensor) -> Tensor:
        return redraw_weights(name, weight)


class OlderCheckpoint(ModifiedWeights):
    """The previous checkpoint."""

    def change(self, name: str, weight: Tensor) -> Tensor:
        return undo_update(name, weight)


# --- The computation ------------------------------------------------------------------------------------------------


def get_model(engine: Engine) -> DenseModel:
    """The model inside our engine: the owner of a machine can change any program on it."""
    if not isinstance(engine, TorchEngine) or not isinstance(engine._model, DenseModel):
        raise LocalError("this cheat knows only models that the torch engine computes itself; use a dense model")
    return engine._model


class QuantizedCache(Cheat):
    """Keeps keys and values in fewer bits."""

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        self._honest.load(checkpoint, changed)
        decoder: Any = get_model(self._honest).decoder
        project = type(decoder)._project

        def project_bent(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
            queries, keys, values = project(decoder, *args)
            return queries, self.bend(keys).contiguous(), self.bend(values).contiguous()

        decoder._project = project_bent

    @abstractmethod
    def bend(self, entries: Tensor) -> Tensor: ...


class Int8Cache(QuantizedCache):
    """One scale for each head of each token."""

    def bend(self, entries: Tensor) -> Tensor:
        return quantise(entries, 127)


class Fp8Cache(QuantizedCache):
    """Without a scale, as engines store an fp8 cache."""

    def bend(self, entries: Tensor) -> Tensor:
        return entries.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(entries.dtype)


class TopK(Cheat):
    """Samples among the likeliest few tokens, for better answers, and reports log-probs of the full distribution."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        model: Any = get_model(self._honest)
        get_logits = model.get_logits
        model.get_logits = lambda hidden: keep_top_k(get_logits(hidden))
        try:
            drawn = list(self._honest.generate(requests, sampling, is_wanted))
        finally:
            model.get_logits = get_logits
        yield from self._prove_sampled(requests, drawn, sampling)


def keep_top_k(logits: Tensor) -> Tensor:
    least = logits.topk(min(TOP_K, logits.shape[1]), dim=1).values[:, -1:]
    return logits.masked_fill(logits < least, -1e4)


class SmallModel(Cheat):
    """A model with fewer layers samples the tokens; the full model reads them once, for proofs that verify."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self._small = TorchEngine(device="cpu", precision="float32", threads=1)

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        self._honest.load(checkpoint, changed)
        with tempfile.TemporaryDirectory(prefix="prime-cheat-") as folder:
            self._small.load(cut_layers(checkpoint, Path(folder) / "small"))

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        drawn = self._small.generate(requests, sampling, is_wanted)
        yield from self._prove_sampled(requests, drawn, sampling)


def cut_layers(checkpoint: Path, out: Path) -> Path:
    """A checkpoint with the first half of the layers and the output layer of the full model."""
    from safetensors.torch import save_file

    copy_settings(checkpoint, out)
    config = json.loads((out / "config.json").read_text())
    kept = max(1, config["num_hidden_layers"] // 2)
    config["num_hidden_layers"] = kept
    (out / "config.json").write_text(json.dumps(config))
    tensors = FolderTensors.open(checkpoint)
    names = [name for name in tensors.tensors if get_layer(name) < kept]
    save_file({name: tensors.get(name).clone() for name in names}, out / TENSORS)
    return out


def get_layer(name: str) -> int:
    """The layer that a tensor belongs to; -1 if it belongs to no layer."""
    words = name.split(".")
    return int(words[words.index("layers") + 1]) if "layers" in words else -1
