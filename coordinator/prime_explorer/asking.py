"""The parameters of a page, each with one way to write it. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from prime_explorer.constants import QUERY_CHARS_MAX
from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId

NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
CURSOR = re.compile(r"([0-9]{1,19})\.(0x[0-9a-f]{40})")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """What stands in the path and behind the question mark. An empty parameter counts as left out: forms send those."""

    given: Mapping[str, str]

    def text(self, name: str) -> str:
        return self.given.get(name, "").strip()[:QUERY_CHARS_MAX]

    def number(self, name: str, most: int = LOG_ENTRIES_MAX) -> int | None:
        text = self.text(name)
        if not text:
            return None
        if not NUMBER.fullmatch(text) or int(text) > most:
            raise RemoteError(name, f"is not a whole number from 0 to {most:,}")
        return int(text)

    def choice(self, name: str, choices: Mapping[str, T], otherwise: str = "") -> str:
        text = self.text(name) or otherwise
        if text and text not in choices:
            raise RemoteError(name, f"is not one of {', '.join(choices)}")
        return text

    def node(self, name: str) -> NodeId | None:
        return _read(name, self.text(name), NodeId)

    def digest(self, name: str) -> Digest | None:
        return _read(name, self.text(name), Digest)

    def run(self, name: str = "run") -> RunId | None:
        text = self.text(name)
        try:
            return RunId(text) if text else None
        except RemoteError as error:
            raise RemoteError(name, error.problem) from None

    def subject(self, name: str) -> bytes | None:
        """An address or a digest."""
        text = self.text(name).lower()
        return _read(name, text, NodeId if len(text) < 50 else Digest)

    def place(self, name: str = "after") -> tuple[int, bytes] | None:
        """Where a page of an ordered table begins: the last row's number and node."""
        text = self.text(name)
        if not text:
            return None
        match = CURSOR.fullmatch(text)
        if not match:
            raise RemoteError(name, "is not a place in this table; go back to its first page")
        return int(match[1]), bytes.fromhex(match[2][2:])


def _read(name: str, text: str, kind: type[T]) -> T | None:
    if not text:
        return None
    try:
        return kind.parse(text)  # type: ignore[attr-defined, no-any-return]
    except RemoteError as error:
        raise RemoteError(name, error.problem) from None
