"""Numbers that a verdict or a step carries, each under a name."""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.codec import Size
from prime_protocol.errors import RemoteError


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number."""

    name: Annotated[str, Size(1, 48)]
    value: float


def check_names(metrics: tuple[Metric, ...]) -> None:
    """RemoteError where a name stands twice, or out of order: there is one way to write the same numbers."""
    names = [metric.name for metric in metrics]
    if names != sorted(set(names)):
        raise RemoteError("metrics", "must be sorted by name, each once")
