"""A value that must not be printed: a passphrase, an access key, a token.

It shows as *** wherever it is formatted, and it refuses to be pickled. Finding secrets inside other text is
redaction.py's work.
"""

import hmac
from typing import NoReturn

MASK = "***"


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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not written down; reveal it where it is used")
