"""How fast messages are encoded and strictly decoded, against msgpack alone, which checks nothing and builds no types.

    python bench/codec.py [--rounds 20]

The peer packs and unpacks the same bytes as plain dicts. Rounds alternate between the two; the best of each counts.
"""

import gc
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import msgpack
from benchmark import BenchmarkParser, print_result, take_turns

from prime_protocol.wire.codec import Size, decode, encode
from prime_protocol.wire.envelope import Payload, Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a node says every few seconds."""

    lease: Uint
    step: Step
    progress: float
    engine: Annotated[str, Size(0, 40)]
    checkpoint: Digest
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One item of a manifest."""

    digest: Digest
    file: Uint
    length: Uint
    offset: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The shards of a 62 GB checkpoint."""

    run: RunId
    shards: tuple[Shard, ...]


HEARTBEAT = Heartbeat(
    lease=123_456,
    step=Step(77),
    progress=0.25,
    engine="torch cpu",
    checkpoint=Digest(b"c" * 32),
    is_draining=False,
)
LETTER = Payload(
    version=1,
    network=NetworkId("main"),
    run=RunId("run-1"),
    sender=NodeId(b"n" * 20),
    sequence=1_800_000_000_000 * 1024,
    issued_at_ms=1_800_000_000_000,
    expires_at_ms=1_800_000_060_000,
    kind="heartbeat",
    body=encode(HEARTBEAT),
)
SHARDS = Shards(
    run=RunId("run-1"),
    shards=tuple(
        Shard(digest=Digest(i.to_bytes(32, "big")), file=i // 400, length=2**24, offset=i % 400 * 2**24)
        for i in range(4000)
    ),
)


def bench(message: Any, *, rounds: int, count: int) -> tuple[float, float]:
    kind, frame = type(message), encode(message)
    plain = msgpack.unpackb(frame)
    assert msgpack.packb(plain) == frame, "the peer must write the same bytes"
    assert decode(kind, frame) == message
    works = {
        "ours_in": lambda: encode(message),
        "peer_in": lambda: msgpack.packb(plain),
        "ours_out": lambda: decode(kind, frame),
        "peer_out": lambda: msgpack.unpackb(frame),
    }
    ours_in, peer_in, ours_out, peer_out = map(min, take_turns(works, rounds=rounds, calls=count).values())
    for what, ours, peer in (("encode", ours_in, peer_in), ("decode", ours_out, peer_out)):
        rate = f"{1 / ours:>12,.0f} /s {len(frame) / ours / 1e6:>8.1f} MB/s"
        print(f"{kind.__name__:<10} {len(frame):>8} bytes  {what} {rate}   msgpack {1 / peer:>12,.0f} /s")
        print(f"{'':<35} takes {ours / peer:.1f} times as long as msgpack alone")
    return ours_in / peer_in, ours_out / peer_out


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 20, 1)
    options = parser.parse()
    print(f"Python {sys.version.split()[0]}, msgpack {'.'.join(map(str, msgpack.version))}, one thread")
    gc.freeze()
    bench(HEARTBEAT, rounds=options.rounds, count=1000)
    bench(LETTER, rounds=options.rounds, count=1000)
    encode_ratio, decode_ratio = bench(SHARDS, rounds=options.rounds, count=1)
    print_result(encode_ratio=f"{encode_ratio:.1f}", decode_ratio=f"{decode_ratio:.1f}")


if __name__ == "__main__":
    main()
