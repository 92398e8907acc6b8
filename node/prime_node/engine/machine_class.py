"""The class of a loaded engine: what its numerical noise depends on, as one name. Pure.

The driver is not part of it. The libraries that compute are part of the engine's version, and drivers change too often
to calibrate for each. Calibration files say the driver all the same.
"""

import re

from prime_node.engine.interface import EngineFacts
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.class_bounds import EngineClass

DEVICE_CHARS_MAX = 40
OTHER_CHARACTERS = re.compile("[^a-z0-9]+")
VERSION = re.compile(r"([0-9]+\.[0-9]+)")


def get_engine_class(facts: EngineFacts) -> EngineClass | None:
    """None for an engine that does not say what it is."""
    parts = (
        make_device_slug(facts.device_model),
        make_engine_slug(facts.engine, facts.version),
        make_slug(facts.attention),
        make_slug(facts.precision),
        f"tp{facts.tensor_parallel}",
    )
    if not all(parts):
        return None
    try:
        return EngineClass("/".join(parts))
    except RemoteError:
        return None


def make_device_slug(model: str) -> str:
    return make_slug(model)[:DEVICE_CHARS_MAX].strip("-")


def make_engine_slug(name: str, version: str) -> str:
    """Empty without a version. The third number is left out: 0.33.1 computes as 0.33.0 does."""
    known = VERSION.match(version)
    return f"{make_slug(name)}-{known[1]}" if known else ""


def make_slug(text: str) -> str:
    """As a part of a class: NVIDIA H100 80GB HBM3 is nvidia-h100-80gb-hbm3."""
    return OTHER_CHARACTERS.sub("-", text.lower()).strip("-")
