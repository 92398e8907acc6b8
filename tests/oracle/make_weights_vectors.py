"""Write tests/vectors/delta.json and manifest.json from the text of docs/protocol/weights.md alone.

Nothing of prime_protocol is imported: this is a second, slow implementation. Run it from anywhere; it takes a second.
"""

import hashlib
import json
import random
import struct
from pathlib import Path
from typing import Any

import blake3
import zstandard

VECTORS = Path(__file__).parents[1] / "vectors"
SAME, SPARSE, PLANES, RAW = range(4)


def encode_sparse(old: list[int], new: list[int], width: int) -> bytes:
    """A sparse block of lanes, or the one byte of an unchanged one."""
    gaps, values, unchanged = bytearray(), [], 0
    for before, after in zip(old, new, strict=True):
        if before == after:
            unchanged += 1
            continue
        while unchanged >= 255:
            gaps.append(255)
            unchanged -= 255
        gaps.append(unchanged)
        unchanged = 0
        step = (after - before) % 2 ** (8 * width)
        signed = step if step < 2 ** (8 * width - 1) else step - 2 ** (8 * width)
        values.append(2 * signed if signed >= 0 else -2 * signed - 1)
    if not values:
        return bytes([SAME])
    planes = [bytes(value >> (8 * plane) & 255 for value in values) for plane in range(width)]
    return bytes([SPARSE]) + struct.pack("<II", len(values), len(gaps)) + frames([bytes(gaps), *planes])


def frames(streams: list[bytes]) -> bytes:
    packed = [zstandard.ZstdCompressor(level=3).compress(stream) for stream in streams]
    return b"".join(struct.pack("<I", len(frame)) + frame for frame in packed)


def pack(lanes: list[int], width: int) -> bytes:
    return b"".join(lane.to_bytes(width, "little") for lane in lanes)


def make_record(block: bytes, data: bytes, width: int) -> bytes:
    return struct.pack("<BBQ", 1, width, len(data)) + block


def make_delta_vectors() -> list[dict[str, Any]]:
    dice = random.Random("delta vectors")
    vectors = []
    for width, lanes, changed in [(1, 900, 3), (2, 1500, 12), (2, 600, 0), (4, 1100, 7), (2, 0, 0)]:
        old = [dice.randrange(256**width) for _ in range(lanes)]
        new = list(old)
        for lane in dice.sample(range(lanes), changed):
            new[lane] = (old[lane] + dice.choice([1, -1, 300, 2 ** (8 * width - 1)])) % 256**width
        block = encode_sparse(old, new, width) if lanes else b""
        vectors.append(vector(f"sparse, {changed} of {lanes} lanes", width, pack(old, width), pack(new, width), block))
    # Bits that arithmetic on floats would lose: two NaNs with payloads, and the sign of zero.
    old = [0x0000, 0x7FC0, 0xFFC1, 0x3F80] + [0] * 96
    new = [0x8000, 0x7FC1, 0x7FC1, 0x3F80] + [0] * 96
    vectors.append(vector("sign of zero, NaN payloads", 2, pack(old, 2), pack(new, 2), encode_sparse(old, new, 2)))
    zeros, ramp = bytes(400), bytes(200) + bytes([1, 2] * 100)
    dense = bytes([PLANES]) + frames([ramp[0::2], ramp[1::2]])
    vectors.append(vector("planes", 2, zeros, ramp, dense))
    noise = dice.randbytes(64)
    vectors.append(vector("raw", 4, bytes(64), noise, bytes([RAW]) + noise))
    return vectors


def vector(name: str, width: int, old: bytes, new: bytes, block: bytes) -> dict[str, Any]:
    record = make_record(block, new, width)
    return {"name": name, "width": width, "old": old.hex(), "new": new.hex(), "record": record.hex()}


def make_root_vectors() -> list[dict[str, Any]]:
    tensors: list[dict[str, Any]] = [
        {"name": "lm_head.weight", "dtype": "BF16", "shape": [3, 2], "data": "000102030405060708090a0b"},
        {"name": "model.layers.0.norm", "dtype": "F32", "shape": [1], "data": "0000803f"},
        {"name": "model.scale", "dtype": "F16", "shape": [], "data": "003c"},
        {"name": "none", "dtype": "I64", "shape": [0, 4], "data": ""},
    ]
    return [{"tensors": tensors[:number], "root": compute_root(tensors[:number])} for number in (1, 2, 3, 4)]


def compute_root(tensors: list[dict[str, Any]]) -> str:
    fields = [b"prime-swarm/checkpoint-root/2"]
    for tensor in tensors:
        shape = b"".join(struct.pack(">Q", size) for size in tensor["shape"])
        digest = blake3.blake3(bytes.fromhex(tensor["data"])).digest()
        fields += [tensor["name"].encode(), tensor["dtype"].encode(), shape, digest]
    framed = b"".join(struct.pack(">I", len(field)) + field for field in fields)
    return "0x" + hashlib.sha256(framed).hexdigest()


def main() -> None:
    (VECTORS / "delta.json").write_text(json.dumps({"records": make_delta_vectors()}, indent=1) + "\n")
    (VECTORS / "manifest.json").write_text(json.dumps({"roots": make_root_vectors()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
