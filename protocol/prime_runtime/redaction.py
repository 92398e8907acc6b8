"""Secrets that never print, and text made safe for a log: no control characters, no secrets, bounded length. Pure.

A private key is 64 hex digits, and so is a digest. Only a value of type Digest is known to be public: the log marks
those, and replaces every other text of that shape by a fingerprint.
"""

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NoReturn

MASK = "***"
SECRET_CHARS_MIN = 8
"""A shorter secret is guessed, and replacing it in the logs would replace half the log."""


class Secret:
    """A passphrase, access key or token. It formats as *** and refuses to be pickled; only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The secret text. Call this where the text is used, and keep no copy."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __deepcopy__(self, memo: object) -> "Secret":
        # dataclasses.asdict makes deep copies; the copy must stay a Secret.
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """How a setting of this type is read: text of some length, shown in no error."""
        from pydantic_core import core_schema

        text = core_schema.str_schema(min_length=SECRET_CHARS_MIN)
        return core_schema.union_schema(
            [core_schema.is_instance_schema(cls), core_schema.no_info_after_validator_function(cls, text)]
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled; reveal it where it is used")


PUBLIC_MARK = "\ue000"
"""A private-use character before 64 hex digits that are known to be public."""
KEY_CHARS = 66
SEARCHED_FACTOR = 16
"""How much more text is searched than printed. This bounds the cost of a hostile text of megabytes."""
KEY_SHAPE = re.compile(rf"(?<![0-9a-zA-Z{PUBLIC_MARK}])(?:0[xX])?[0-9a-fA-F]{{64}}(?![0-9a-zA-Z])")


def escape(text: str) -> str:
    """Replace unprintable characters by visible escapes, so that text cannot forge a line or command a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def truncate(text: str, chars_max: int) -> str:
    """At most about chars_max characters, followed by the number of omitted ones."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… and {len(text) - chars_max} more"


class Redactor:
    """Replaces the given secrets and everything that looks like a private key."""

    def __init__(self, secrets: Iterable[Secret]) -> None:
        # Longest first: a secret that contains another secret leaves no tail behind.
        texts = sorted({secret.reveal() for secret in secrets if secret.reveal()}, key=len, reverse=True)
        self._longest = max([KEY_CHARS, *map(len, texts)])
        self._secrets = re.compile("|".join(map(re.escape, texts))) if texts else None

    def clean(self, text: str, chars_max: int) -> str:
        """Redact, then escape, then truncate: in any other order a part of a secret could remain."""
        shown = text[: chars_max * SEARCHED_FACTOR]
        if self._secrets:
            shown = self._secrets.sub(MASK, shown)
        shown = KEY_SHAPE.sub(_fingerprint, shown)
        if len(text) > chars_max * SEARCHED_FACTOR:
            # A secret across the end of the searched text was not found; drop the part of it that is there.
            shown = shown[: -self._longest] + "…"
        return truncate(escape(shown.replace(PUBLIC_MARK, "")), chars_max)


def _fingerprint(match: re.Match[str]) -> str:
    """The same key gives the same fingerprint, so that lines can be matched; it does not reveal the key."""
    digits = match[0][-64:].lower()
    return f"[64 hex digits, sha256 {sha256(digits.encode()).hexdigest()[:8]}]"


def _escape_char(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
