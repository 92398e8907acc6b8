"""The msgpack forms that the protocol uses, from the standard library alone, for the scripts that write vectors.

It shares no code with prime_protocol and none with the msgpack package. A `bytes` inside `Raw` goes out as it is, which
is how the refused examples are made.
"""

import struct


class Raw(bytes):
    """Bytes that are already encoded."""


def pack(value):
    if isinstance(value, Raw):
        return bytes(value)
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return pack_int(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        raw = value.encode()
        return pack_head(len(raw), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + raw
    if isinstance(value, bytes):
        return pack_head(len(value), 0, 0, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, dict):
        # The order of the dict, so that a wrong one can be written too; see `message`.
        head = pack_head(len(value), 0x80, 16, (None, 0xDE, 0xDF))
        return head + b"".join(pack(key) + pack(item) for key, item in value.items())
    return pack_head(len(value), 0x90, 16, (None, 0xDC, 0xDD)) + b"".join(map(pack, value))


def pack_head(length, short, short_below, longer):
    if length < short_below:
        return bytes([short + length])
    for head, limit, code in zip(longer, (2**8, 2**16, 2**32), (">BB", ">BH", ">BI"), strict=True):
        if head is not None and length < limit:
            return struct.pack(code, head, length)
    raise ValueError(length)


def pack_int(value):
    if -32 <= value < 128:
        return struct.pack(">b", value)
    if value >= 0:
        forms = ((0xCC, ">BB", 2**8), (0xCD, ">BH", 2**16), (0xCE, ">BI", 2**32), (0xCF, ">BQ", 2**64))
    else:
        forms = ((0xD0, ">Bb", 2**7), (0xD1, ">Bh", 2**15), (0xD2, ">Bi", 2**31), (0xD3, ">Bq", 2**63))
    for head, code, limit in forms:
        if (value < limit) if value >= 0 else (value >= -limit):
            return struct.pack(code, head, value)
    raise ValueError(value)


def message(**fields):
    """A message: a map whose keys are sorted."""
    return pack(dict(sorted(fields.items())))
