"""Which tensors of a checkpoint vLLM must be given together. No vLLM here."""

import re
from collections.abc import Collection

LAYER = re.compile(r"^.*?\.[0-9]+\.")
"""Up to the first number in a tensor's name: the layer it belongs to."""


def whole_layers(changed: Collection[str], names: Collection[str]) -> frozenset[str]:
    """All tensors of the layers that have a changed one.

    vLLM keeps several tensors of a layer as one (queries, keys and values; the gates of all experts), and forgets the
    rest of it when one is replaced.
    """
    layers = {layer_of(name) for name in changed}
    return frozenset(name for name in names if layer_of(name) in layers)


def layer_of(name: str) -> str:
    found = LAYER.match(name)
    return found[0] if found else name
