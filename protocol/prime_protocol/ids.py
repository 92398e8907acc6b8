"""The names of things: distinct types, one way to parse each, one way to print it.

Nothing here hashes or signs; see signing.py for how a NodeId comes from a key.
"""

import re
from typing import NewType, Self

from prime_protocol.constants import ADDRESS_BYTES, DIGEST_BYTES, NAME_CHARS_MAX
from prime_protocol.errors import RemoteError

Step = NewType("Step", int)
"""Number of a training step, from 0. Checkpoint s is what step s's rollouts are made with."""

Slot = NewType("Slot", int)
"""Number of a slot inside a step: one task, G samples."""

Sample = NewType("Sample", int)
"""Number of a sample inside a slot, 0 to G-1."""

NAME = re.compile(rf"[a-z0-9](?:[a-z0-9-]{{0,{NAME_CHARS_MAX - 2}}}[a-z0-9])?")


class FixedBytes(bytes):
    """Bytes of one exact length, printed as 0x and lower-case hex."""

    __slots__ = ()
    SIZE = 0

    def __new__(cls, raw: bytes) -> Self:
        if len(raw) != cls.SIZE:
            raise RemoteError(cls.__name__, f"is {len(raw)} bytes, expected {cls.SIZE}")
        return bytes.__new__(cls, raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        if not re.fullmatch(rf"0x[0-9a-f]{{{2 * cls.SIZE}}}", text):
            raise RemoteError(cls.__name__, f"must be 0x and {2 * cls.SIZE} lower-case hex digits")
        return cls(bytes.fromhex(text[2:]))

    def __str__(self) -> str:
        return "0x" + self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"


class Digest(FixedBytes):
    """A SHA-256 digest."""

    __slots__ = ()
    SIZE = DIGEST_BYTES


class NodeId(FixedBytes):
    """An Ethereum address: the identity of a node, an owner, a trainer or a coordinator."""

    __slots__ = ()
    SIZE = ADDRESS_BYTES


class Name(str):
    """A network or run name: 1 to 40 of a-z, 0-9 and inner dashes. Safe in a path, a URL and a terminal."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not NAME.fullmatch(text):
            raise RemoteError(cls.__name__, f"must be 1 to {NAME_CHARS_MAX} characters of a-z, 0-9 and inner dashes")
        return super().__new__(cls, text)


class NetworkId(Name):
    """Which network an envelope is meant for. Main, test and dev networks never share one."""

    __slots__ = ()


class RunId(Name):
    """Which training run."""

    __slots__ = ()
