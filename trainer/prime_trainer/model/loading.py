"""Loads a model without ever holding it whole: built without memory, sharded, then filled from safetensors files.

Parameters are built on torch's meta device, which has shapes and no values. After sharding, each rank allocates its
part in float32 and reads only the rows of its part, so its peak is its shard and one tensor on the way. Buffers (rotary
frequencies, for instance) are not in the files; they are built with their values, because they are small.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from prime_protocol.errors import LocalError

Tensor = Any

EAGER_ATTENTION = "eager"
"""The plain attention of `transformers`: the reference, and the choice for models that cannot be packed."""
TRIAL_VOCABULARY = 256
"""Vocabulary of a copy for trials: what follows the embedding does not depend on its size."""


# --- Building ---------------------------------------------------------------------------------------------------------


def read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise LocalError(f"cannot read a causal language model from {folder}: {error}") from None


def build_model(config: Any) -> Any:
    """The model of a configuration, in float32, with random weights."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=EAGER_ATTENTION)
    except ValueError as error:
        raise LocalError(f"this is not the configuration of a causal language model: {error}") from None


def build_without_weights(config: Any) -> Any:
    """The model with parameters on the meta device, and buffers that have their values."""
    with parameters_on_meta():
        return build_model(config)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Every parameter that a module registers becomes a meta tensor at once.

    `torch.device("meta")` would take the values of the buffers too, and some cannot be computed again from outside.
    """
    register = torch.nn.Module.register_parameter

    def register_meta(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            module._parameters[name] = torch.nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    torch.nn.Module.register_parameter = register_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def shorten_config(config: Any) -> Any:
    """The configuration of a small copy for trials: one layer of each kind, and a small vocabulary."""
    short = copy.deepcopy(config)
    text = short.get_text_config()
    layers = count_layers_of_each_kind(build_without_weights(copy.deepcopy(config)))
    if layers and getattr(text, "num_hidden_layers", None):
        text.num_hidden_layers = layers
        if "layer_types" in vars(text):
            text.layer_types = text.layer_types[:layers]
    text.vocab_size = min(text.vocab_size, TRIAL_VOCABULARY)
    text.pad_token_id = None
    return short


def find_layers(model: Any) -> list[Any]:
    """The decoder's layers, which are sharded one by one."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    # FSDP derives a class of its own from a module's.
    return [each for each in model.modules() if names & {base.__name__ for base in type(each).__mro__}]


def count_layers_of_each_kind(model: Any) -> int:
    """The number of layers at the beginning that contain every kind of layer; 0 if the model has none that we know."""
    layers = find_layers(model)
    types = getattr(model.config.get_text_config(), "layer_types", None) or [None] * len(layers)
    kinds = [
        (
            kind,
            *(type(module).__name__ for module in layer.modules()),
            *(tuple(each.shape) for each in layer.parameters()),
        )
        for layer, kind in zip(layers, types, strict=False)
    ]
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=0)


# --- Filling ----------------------------------------------------------------------------------------------------------


class TensorSource(Protocol):
    """Full tensors by name, of which rows can be read."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str, rows: slice) -> Tensor: ...


class TensorFiles:
    """The safetensors files of a folder, mapped."""

    def __init__(self, folder: Path) -> None:
        try:
            self._files = [safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))]
            self._slices: dict[str, Any] = {
                name: file.get_slice(name)  # type: ignore[no-untyped-call]
                for file in self._files
                for name in file.keys()  # type: ignore[no-untyped-call]  # noqa: SIM118
            }
        except (OSError, SafetensorError) as error:
            raise LocalError(f"cannot read a causal language model from {folder}: {error}") from None
        if not self._slices:
            raise LocalError(f"cannot read a causal language model from {folder}: it holds no safetensors file")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(each.get_shape()) for name, each in self._slices.items()}

    def read(self, name: str, rows: slice) -> Tensor:
        return self._slices[name][rows] if self._slices[name].get_shape() else self._slices[name][...]


class LoadedTensors:
    """Tensors in memory: those of a model whose names in the files `transformers` converts."""

    def __init__(self, model: Any) -> None:
        self._tensors, _ = list_tensors(model)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(each.shape) for name, each in self._tensors.items()}

    def read(self, name: str, rows: slice) -> Tensor:
        return self._tensors[name][rows] if self._tensors[name].ndim else self._tensors[name]


def allocate_weights(model: Any, device: str) -> None:
    """Replace meta tensors by memory of this rank's part, and move buffers. Tied parameters stay tied."""
    ties = list(find_ties(model))
    model._apply(lambda each: torch.empty_like(each, device=device) if each.is_meta else each.to(device))
    for module, name, owner, owned in ties:
        module._parameters[name] = owner._parameters[owned]


def find_ties(model: Any) -> Iterator[tuple[Any, str, Any, str]]:
    """(module, name) of each parameter that is the same as one before it, with that one's module and name."""
    seen: dict[int, tuple[Any, str]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            owner = seen.setdefault(id(parameter), (module, name))
            if owner != (module, name):
                yield module, name, *owner


def fill_weights(model: Any, source: TensorSource) -> bool:
    """Copy this rank's rows of every tensor. False, and nothing is copied, if the source has other tensors."""
    wanted, ties = list_tensors(model)
    shapes = dict(source.shapes())
    given = {name: name for name in wanted.keys() & shapes.keys()}
    for alias, name in ties.items():
        if shapes.pop(alias, None) is not None:
            given.setdefault(name, alias)
    if given.keys() != wanted.keys() or not shapes.keys() <= wanted.keys():
        return False
    if any(tuple(wanted[name].shape) != source.shapes()[file_name] for name, file_name in given.items()):
        return False
    with torch.no_grad():
        for name, tensor in wanted.items():
            local, rows = get_local(tensor)
            local.copy_(source.read(given[name], rows))
    return True


def list_tensors(model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor that a file of the model holds, once, and the other names of tied ones with the first name."""
    parameters = dict(model.named_parameters())
    names = {id(value): name for name, value in parameters.items()}
    tied = {
        name: names[id(value)]
        for name, value in model.named_parameters(remove_duplicate=False)
        if name not in parameters
    }
    buffers = {name: value for name, value in model.state_dict().items() if name not in parameters and name not in tied}
    return {**parameters, **buffers}, tied


def get_local(tensor: Tensor) -> tuple[Tensor, slice]:
    """This rank's part of a tensor, and which rows of the full one it is."""
    if not hasattr(tensor, "device_mesh"):
        return tensor, slice(0, tensor.shape[0] if tensor.ndim else None)
    mesh, local = tensor.device_mesh, tensor.to_local()
    (dimension,) = [number for number, each in enumerate(tensor.placements) if each.is_shard(0)]
    rows = get_rows(tensor.shape[0], mesh.size(dimension), mesh.get_local_rank(dimension))
    assert len(local) == rows.stop - rows.start, "FSDP splits as torch.chunk does"
    return local, rows


def get_rows(total: int, parts: int, part: int) -> slice:
    """The rows of one of `parts` equal parts, of which the last ones may be short or empty."""
    size = -(-total // parts)
    return slice(min(total, part * size), min(total, (part + 1) * size))
