"""Hostile bytes for one parser: a seeded mutator over honest examples, and the claim that every input ends well.

Ending well is a value or a RemoteError, inside the time limit. `FUZZ_INPUTS` sets how many inputs each parser gets.
"""

import os
import random
import time
from collections.abc import Callable, Sequence

from prime_protocol.errors import RemoteError

INPUTS_DEFAULT = 2_000
SECONDS_MAX = 2.0
EDGES = [b"", b"\x00", b"\xff", b"\x80", b"\x7f", b"\xff" * 8, b"\x00" * 8, b"\x7f\xff\xff\xff", b"\n", b"0", b"-1"]


def mutate(dice: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One hostile input: noise, or an honest example cut, spliced, flipped or stretched a few times."""
    if dice.random() < 0.05:
        return dice.randbytes(dice.choice([0, 1, 2, 16, 300, 5000]))
    data = bytearray(dice.choice(corpus))
    for _ in range(dice.choice([1, 1, 1, 2, 4, 16])):
        start = dice.randrange(len(data) + 1)
        end = min(len(data), start + dice.choice([0, 1, 1, 2, 4, 32]))
        kind = dice.randrange(6)
        if kind == 0 and data:
            data[start % len(data)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[start:end] = dice.choice(EDGES)
        elif kind == 2:
            del data[start:end]
        elif kind == 3:
            data[start:end] = dice.randbytes(end - start)
        elif kind == 4:
            other = dice.choice(corpus)
            cut = dice.randrange(len(other) + 1)
            data[start:end] = other[cut : cut + dice.choice([1, 8, 64, len(other)])]
        else:
            data[start:start] = data[start:end] * dice.choice([1, 2, 100])
    return bytes(data)


def assert_survives(parse: Callable[[bytes], object], corpus: Sequence[bytes], seed: int = 0) -> None:
    """Every mutated input gives a value or a RemoteError in time; the failing input is in the message."""
    for example in corpus:
        parse(example)
    refused, inputs = 0, int(os.environ.get("FUZZ_INPUTS", INPUTS_DEFAULT))
    for number in range(inputs):
        data = mutate(random.Random(f"{seed}/{number}"), corpus)
        started = time.perf_counter()
        try:
            parse(data)
        except RemoteError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"input {number} of seed {seed} broke the parser: {data[:200].hex()}") from error
        took = time.perf_counter() - started
        assert took < SECONDS_MAX, f"input {number} of seed {seed} took {took:.1f} s: {data[:200].hex()}"
    assert refused > inputs // 10, f"only {refused} of {inputs} hostile inputs were refused: is anything checked?"
