"""Where in a frame a value is: the path by which a refusal names it (`.shards[3].digest`).

Only refused frames come here, so it may be slow; its time is proportional to the length of the frame.
"""

from typing import Any

import msgpack

from prime_protocol.constants import DEPTH_MAX, ITEMS_MAX

KEY_CHARS_MAX = 40
MAPS = frozenset(bytes([head]) for head in (*range(0x80, 0x90), 0xDE, 0xDF))
LISTS = frozenset(bytes([head]) for head in (*range(0x90, 0xA0), 0xDC, 0xDD))
"""First bytes of containers."""
NOT_READ = (ValueError, msgpack.UnpackException)


def find_unreadable_path(frame: bytes, *, list_max: int, map_max: int) -> str:
    """The innermost value that msgpack cannot read within these limits."""
    return _descend(frame, None, list_max, map_max)


def find_path_at(frame: bytes, at: int) -> str:
    """The innermost value that holds byte `at` of an honest frame. A map's value holds its key too."""
    return _descend(frame, at, ITEMS_MAX, ITEMS_MAX)


def find_first_difference(ours: bytes, theirs: bytes) -> int:
    """The first byte in which two frames differ. By halving: a frame may have four million."""
    low, high = 0, min(len(ours), len(theirs))
    while low < high:
        middle = (low + high) // 2
        if ours[low : middle + 1] == theirs[low : middle + 1]:
            low = middle + 1
        else:
            high = middle
    return low


def format_key(key: Any) -> str:
    """The step of a path for a key that may be hostile: short, and nothing in it that cannot be printed."""
    if not isinstance(key, str | bytes):
        return ".?"
    short = key[:KEY_CHARS_MAX]
    return f".{short}" if isinstance(short, str) and short.isidentifier() else f".{short!r}"


def _descend(frame: bytes, at: int | None, list_max: int, map_max: int) -> str:
    path, start = "", 0
    for _ in range(DEPTH_MAX):
        reader = msgpack.Unpacker(max_buffer_size=len(frame), max_array_len=list_max, max_map_len=map_max)
        reader.feed(frame[start:])
        step, offset = _child(reader, frame[start : start + 1], None if at is None else at - start, list_max, map_max)
        if not step:
            break
        path, start = path + step, start + offset
    return path


def _child(reader: Any, head: bytes, at: int | None, list_max: int, map_max: int) -> tuple[str, int]:
    """The step to the wanted child, and where it starts; no step where the container itself is what is wrong."""
    try:
        count = _count(reader, head, list_max, map_max)
        if at is not None and at < reader.tell():
            return "", 0
        for index in range(count):
            step = format_key(reader.unpack()) if head in MAPS else f"[{index}]"
            offset = reader.tell()
            if not _passes(reader, at):
                return step, offset
    except NOT_READ:
        pass  # a header or a key cannot be read
    return "", 0


def _passes(reader: Any, at: int | None) -> bool:
    """Move behind the next value; False where that value is the wanted one."""
    if at is not None:
        reader.skip()
        return bool(reader.tell() <= at)
    try:
        reader.unpack()
    except NOT_READ:
        return False
    return True


def _count(reader: Any, head: bytes, list_max: int, map_max: int) -> int:
    """Read a container's header: how many values to look into, none where it is none or past its limit."""
    if head in MAPS:
        count, limit = reader.read_map_header(), map_max
    elif head in LISTS:
        count, limit = reader.read_array_header(), list_max
    else:
        return 0
    return int(count) if count <= limit else 0
