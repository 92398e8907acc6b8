"""Scalars as TensorBoard reads them: a file of checksummed records, each one an Event message in protocol buffers.

Both formats are public, small and settled, so they are written here instead of with a package of forty megabytes.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, its bits reversed."""
MASK = 0xA282EAD8
VERSION = "brain.Event:2"
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 0x09, 0x10, 0x1A, 0x2A
"""Of an Event: field number and wire type in one byte, as protocol buffers write them."""
VALUE, TAG, SIMPLE_VALUE = 0x0A, 0x0A, 0x15
"""Of a Summary, and of a value in it."""


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _make_table()


def compute_crc(data: bytes) -> int:
    """CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _mask(data: bytes) -> bytes:
    """The checksum as records hold it: turned and shifted, so that a checksum of checksums still tells something."""
    crc = compute_crc(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def encode_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _mask(length) + data + _mask(data)


def encode_varint(value: int) -> bytes:
    assert value >= 0
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _encode_bytes(field: int, data: bytes) -> bytes:
    return bytes([field]) + encode_varint(len(data)) + data


def encode_event(at_s: float, step: int, inside: bytes) -> bytes:
    return struct.pack("<Bd", WALL_TIME, at_s) + bytes([STEP]) + encode_varint(step) + inside


def encode_scalars(scalars: Mapping[str, float]) -> bytes:
    values = (
        _encode_bytes(TAG, name.encode()) + struct.pack("<Bf", SIMPLE_VALUE, value) for name, value in scalars.items()
    )
    return _encode_bytes(SUMMARY, b"".join(_encode_bytes(VALUE, value) for value in values))


class EventFile:
    """One process's file; TensorBoard reads all files of a folder as one run."""

    def __init__(self, folder: Path, began_ms: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{began_ms // 1000:010}.prime-trainer.{began_ms % 1000:03}"
        head = encode_event(began_ms / 1000, 0, _encode_bytes(FILE_VERSION, VERSION.encode()))
        self.path.write_bytes(encode_record(head))

    def write(self, at_ms: int, step: int, scalars: Mapping[str, float]) -> None:
        """Whole records only, so that a reader never waits for the rest of one for long."""
        with self.path.open("ab") as file:
            file.write(encode_record(encode_event(at_ms / 1000, step, encode_scalars(scalars))))
