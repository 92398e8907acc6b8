"""A value that must not be printed: a passphrase, an access key, a token.

It shows as *** wherever it is formatted, and it refuses to be pickled. Finding secrets inside other text is
redaction.py's work.

Making text fit for a log: no control characters, no secrets, no private keys, bounded length.

Pure text in, text out. A private key is 64 hex digits and so is a digest; only a value of type Digest is known to be
public, so the log marks those and everything else of that shape is replaced by a fingerprint.
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
    """Holds one secret text; `reveal` is the only way to it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Call it where it is used, and keep no copy."""
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
        # dataclasses.asdict copies deeply; the copy must stay a Secret.
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """How a setting of this type is read: text of some length, shown in no error."""
        from pydantic_core import core_schema

        text = core_schema.str_schema(min_length=SECRET_CHARS_MIN)
        return core_schema.union_schema(
            [core_schema.is_instance_schema(cls), core_schema.no_info_after_validator_function(cls, text)]
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: object, handler: object) -> dict[str, str]:
        return {"type": "string", "format": "password"}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written down; reveal it where it is used")


PUBLIC_MARK = "\ue000"
"""A private-use character in front of 64 hex digits that are known to be public."""
KEY_CHARS = 66
SEARCHED_FACTOR = 16
"""How much more text is searched than shown. A hostile text of megabytes then costs no more than a long honest one."""
KEY_SHAPE = re.compile(rf"(?<![0-9a-zA-Z{PUBLIC_MARK}])(?:0[xX])?[0-9a-fA-F]{{64}}(?![0-9a-zA-Z])")


def escape(text: str) -> str:
    """Everything that cannot be printed becomes a visible escape: no forged line, no terminal command."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char) for char in text)


def truncate(text: str, chars_max: int) -> str:
    """At most about chars_max characters, with the number left out."""
    if len(text) <= chars_max:
        return text
    return f"{text[:chars_max]}… and {len(text) - chars_max} more"


class Redactor:
    """Blots out the given secrets, and whatever looks like a private key."""

    def __init__(self, secrets: Iterable[Secret]) -> None:
        # Longest first, so that a secret that contains another leaves no tail behind.
        texts = sorted({secret.reveal() for secret in secrets if secret.reveal()}, key=len, reverse=True)
        self._longest = max([KEY_CHARS, *map(len, texts)])
        self._secrets = re.compile("|".join(map(re.escape, texts))) if texts else None

    def clean(self, text: str, chars_max: int) -> str:
        """Redacted first, then escaped, then cut: no order of the others keeps a secret whole."""
        shown = text[: chars_max * SEARCHED_FACTOR]
        if self._secrets:
            shown = self._secrets.sub(MASK, shown)
        shown = KEY_SHAPE.sub(_fingerprint, shown)
        if len(text) > chars_max * SEARCHED_FACTOR:
            # A secret that straddles the end of what was searched is still there in part.
            shown = shown[: -self._longest] + "…"
        return truncate(escape(shown.replace(PUBLIC_MARK, "")), chars_max)


def _fingerprint(match: re.Match[str]) -> str:
    """The same key gives the same mark, so that lines can still be matched; the key cannot be found from it."""
    digits = match[0][-64:].lower()
    return f"[64 hex digits, sha256 {sha256(digits.encode()).hexdigest()[:8]}]"


def _escape_char(char: str) -> str:
    code = ord(char)
    if char in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[char]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
