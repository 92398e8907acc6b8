"""The element types of a tensor, by the names safetensors gives them, with their sizes.

Types of less than a byte (F4, F6) are left out: no shape of them is a whole number of bytes for sure.
"""

from enum import StrEnum


class Dtype(StrEnum):
    """An element type. Only its size matters here: weights are digested and patched as bytes, never as numbers."""

    BOOL = "BOOL"
    U8 = "U8"
    I8 = "I8"
    F8_E4M3 = "F8_E4M3"
    F8_E4M3FNUZ = "F8_E4M3FNUZ"
    F8_E5M2 = "F8_E5M2"
    F8_E5M2FNUZ = "F8_E5M2FNUZ"
    F8_E8M0 = "F8_E8M0"
    U16 = "U16"
    I16 = "I16"
    F16 = "F16"
    BF16 = "BF16"
    U32 = "U32"
    I32 = "I32"
    F32 = "F32"
    U64 = "U64"
    I64 = "I64"
    F64 = "F64"
    C64 = "C64"

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self]

    @property
    def lane_bytes(self) -> int:
        """The unit a delta compares: one element, or half of an 8-byte one."""
        return min(self.item_bytes, LANE_BYTES_MAX)


LANE_BYTES_MAX = 4
TWO = frozenset({Dtype.U16, Dtype.I16, Dtype.F16, Dtype.BF16})
FOUR = frozenset({Dtype.U32, Dtype.I32, Dtype.F32})
EIGHT = frozenset({Dtype.U64, Dtype.I64, Dtype.F64, Dtype.C64})
ITEM_BYTES = {dtype: 2 if dtype in TWO else 4 if dtype in FOUR else 8 if dtype in EIGHT else 1 for dtype in Dtype}
