"""A mapping whose closed values stay packed until they are needed.

A ledger holds the submissions of a day, and nearly all of them only wait for their pay. A start that decodes each of
them takes seconds that grow with the work of a day; their bytes are read in a fraction of it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, cast

from prime_protocol.constants import ADDRESS_BYTES
from prime_protocol.wire.ids import NodeId

LABEL_BYTES = ADDRESS_BYTES
"""A packed value begins with the node that it is about, so that a start can group values without unpacking them."""


class Packable(Protocol):
    """What a value of the mapping says about itself."""

    @property
    def is_closed(self) -> bool:
        """Whether a snapshot packs it: so are most values, and none that a start has to look at."""

    @property
    def label(self) -> NodeId:
        """The node that it is about."""


K = TypeVar("K")
V = TypeVar("V", bound=Packable)


class PackedMapping(dict[K, V]):
    """A dict in which a value may be its packed bytes; every reader gets the value itself.

    A value that was unpacked stays so: it may be changed. Values are neither popped nor taken by `setdefault`.
    """

    __slots__ = ("_unpack_all",)

    def __init__(
        self,
        items: Iterable[tuple[K, V | bytes]] = (),
        unpack_all: Callable[[list[bytes]], Iterable[V]] = lambda packed: (),
    ) -> None:
        super().__init__(cast(Iterable[tuple[K, V]], items))
        self._unpack_all = unpack_all

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMapping, (list(self.items()),)

    def __getitem__(self, key: K) -> V:
        value: V | bytes = dict.__getitem__(self, key)
        if isinstance(value, bytes):
            self.unpack([key])
            return dict.__getitem__(self, key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (dict.get would not unpack)

    def items(self) -> Any:
        self.unpack(self)
        return super().items()

    def values(self) -> Any:
        self.unpack(self)
        return super().values()

    def __eq__(self, other: object) -> bool:
        self.unpack(self)
        if isinstance(other, PackedMapping):
            other.unpack(other)
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def unpack(self, keys: Iterable[K]) -> None:
        """Unpack the values of these keys together: many at a time cost a tenth of one by one."""
        packed: dict[K, bytes] = {}
        for key in keys:
            value: V | bytes = dict.__getitem__(self, key)
            if isinstance(value, bytes):
                packed[key] = value
        if packed:
            self.update(zip(packed, self._unpack_all(list(packed.values())), strict=True))

    def iter_stored(self) -> Iterator[tuple[K, V | bytes]]:
        """The values as they are kept: packed, or not."""
        return iter(super().items())

    def list_unpacked(self) -> list[tuple[K, V]]:
        """The values that are not packed. After a start these are the open ones."""
        return [(key, value) for key, value in self.iter_stored() if not isinstance(value, bytes)]

    def iter_labels(self) -> Iterator[tuple[K, NodeId]]:
        """The label of each value, in order."""
        for key, value in self.iter_stored():
            yield key, (bytes.__new__(NodeId, value[:LABEL_BYTES]) if isinstance(value, bytes) else value.label)
