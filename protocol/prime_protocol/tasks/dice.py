"""Numbers drawn from a name, a seed and an index, the same everywhere: SHA-256 in counter mode.

Only drawing lives here. What is drawn, and in which order, is each family's business and may never change for a family
that a run uses.
"""

from hashlib import sha256

WORD_BYTES = 8
WORD_VALUES = 2**64
PREFIX = b"prime task 1"


class Dice:
    """Draws for one task. Block n is SHA-256(prefix, length of the name, name, seed, index, n), read as four words."""

    def __init__(self, name: str, seed: int, index: int) -> None:
        raw = name.encode()
        numbers = seed.to_bytes(WORD_BYTES, "big") + index.to_bytes(WORD_BYTES, "big")
        self.start = PREFIX + len(raw).to_bytes(2, "big") + raw + numbers
        self.block = 0
        self.words: list[int] = []

    def word(self) -> int:
        """The next 64 bits."""
        if not self.words:
            digest = sha256(self.start + self.block.to_bytes(WORD_BYTES, "big")).digest()
            self.words = [
                int.from_bytes(digest[at : at + WORD_BYTES], "big") for at in range(0, len(digest), WORD_BYTES)
            ]
            self.block += 1
        return self.words.pop(0)

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1, each as likely: words that would favour the small ones are drawn again."""
        assert 0 < bound <= WORD_VALUES
        even = WORD_VALUES - WORD_VALUES % bound
        while (word := self.word()) >= even:
            continue
        return word % bound
