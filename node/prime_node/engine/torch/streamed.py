"""A model in the other precision beside an engine that keeps its own weights: one layer at a time, from the checkpoint.

vLLM holds a model in one precision and in a layout of its own, and its cache fills the GPU. The noise of a bfloat16 run
is measured in both precisions (forward.py), so some rows are computed a second time here: each layer is copied from the
mapped files, used for all of those rows, and replaced by the next. That takes memory for one layer and one block of the
head, and a copy of the weights to the device for each group of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from prime_node.engine.torch.dense import DenseDecoder, LayerWeights, map_tensors
from prime_node.engine.torch.dense_shape import UnsupportedShape, parse_dense_shape
from prime_node.engine.torch.forward import CrossPrecisionModel
from prime_node.engine.torch.model import FolderTensors
from prime_runtime.model_files import ModelFiles

HEAD_ROWS = 16_384
"""Rows of the head at a time: 335 MB in float32 at a width of 5,120."""
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
FIRST_LAYER = "model.layers.0."


class StreamedModel(CrossPrecisionModel):
    """Computes in the precision that an engine with weights of type `dtype` does not compute in."""

    def __init__(self, files: ModelFiles, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype) -> None:
        """UnsupportedShape: the model is outside of the dense family."""
        shape = parse_dense_shape(files)
        tensors.check(shape.get_tensors())
        # The decoder of one layer, whose embedding and head are not used.
        super().__init__(DenseDecoder(replace(shape, layers=1, vocabulary=1), device=device, dtype=dtype))
        self._tensors = tensors
        self._layers = shape.layers
        self._head = EMBEDDING if shape.is_tied else HEAD
        places = map_tensors(self._decoder)
        self._places = {name: place for name, place in places.items() if name.startswith(FIRST_LAYER)}
        places[NORM].copy_(tensors.get(NORM))

    def embed(self, tokens: Tensor) -> Tensor:
        rows = self._tensors.get(EMBEDDING).index_select(0, tokens.cpu())
        return rows.to(self._decoder.device).float()

    def list_layers(self) -> Iterator[LayerWeights]:
        (layer,) = self._decoder.layers
        for number in range(self._layers):
            for name, place in self._places.items():
                place.copy_(self._tensors.get(name.replace(FIRST_LAYER, f"model.layers.{number}.", 1)))
            yield layer

    def get_logits(self, hidden: Tensor) -> Tensor:
        device, dtype = self._decoder.device, self._decoder.dtype
        blocks: Sequence[Tensor] = self._tensors.get(self._head).split(HEAD_ROWS)
        return torch.cat([self.multiply_head(hidden, block.to(device, dtype)) for block in blocks], dim=1)


def open_streamed_model(
    files: ModelFiles, tensors: FolderTensors, *, device: torch.device, dtype: torch.dtype
) -> StreamedModel | None:
    """None for models outside of the dense family, whose noise is not measured."""
    try:
        return StreamedModel(files, tensors, device=device, dtype=dtype)
    except UnsupportedShape:
        return None
