"""The sampler of GPUs: both Triton kernels, on the device of the logits."""

import struct

import torch
import triton
from torch import Tensor

from prime_node.engine.torch.draws import Draws, RowScan
from prime_node.engine.torch.triton_kernels import BLOCK, WARPS, finish_rows, scan_blocks


class TritonSampler:
    """Both kernels, on the device of the logits. Nothing here waits for it."""

    def scan(self, logits: Tensor, draws: Draws, tokens: Tensor | None = None) -> RowScan:
        rows, vocabulary = logits.shape
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        blocks = -(-vocabulary // BLOCK)
        seeds, positions = draws.send(logits.device)
        tops, sums, bests = torch.empty((3, rows, blocks), dtype=torch.float32, device=logits.device)
        out = torch.empty((len(RowScan.COLUMNS), rows), dtype=torch.float64, device=logits.device)
        noise = {"temperature_bits": get_float64_bits(draws.temperature), "HAS_NOISE": draws.temperature != 0}
        shape = {"stride": logits.stride(0), "vocabulary": vocabulary, "BLOCK": BLOCK, "num_warps": WARPS}
        scan_blocks[(rows, blocks)](logits, seeds, positions, tops, sums, bests, **shape, **noise)
        finish_rows[(rows,)](
            logits,
            seeds,
            positions,
            seeds if tokens is None else tokens,
            tops,
            sums,
            bests,
            out,
            blocks=blocks,
            BLOCKS=triton.next_power_of_2(blocks),
            HAS_TOKENS=tokens is not None,
            **shape,
            **noise,
        )
        return RowScan(out)


def get_float64_bits(value: float) -> int:
    """Triton passes a float as float32, and an integer as it is."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits
