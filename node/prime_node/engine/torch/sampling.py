"""The network's seeded sampling on the device of the logits: C and numpy on a CPU, Triton or else torch on a GPU."""

import ctypes
import importlib.util
import logging
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.native import library
from prime_node.engine.torch.draws import Draws, RowScan, Sampler
from prime_protocol.errors import LocalError
from prime_protocol.proofs.sampling import (
    LOGITS_NOT_FINITE,
    check_shapes,
    choose_among,
    compute_row_keys,
    compute_token_bits,
    find_winners,
    score_tokens,
)
from prime_protocol.proofs.sampling_torch import scan_rows_torch, score_tokens_torch

log = logging.getLogger(__name__)

LOGPROB_MIN = float(np.finfo(np.float32).min)
"""Log-prob of the end token if there is none."""
NEAR_MAX = 256
"""Tokens of a row that may win, as many as native/draws.c names. Usually it finds one or two; a row with more of them,
such as one of equal logits, is left to numpy."""
SIZE, POINTER = ctypes.c_size_t, ctypes.c_void_p


def choose_tokens(logits: Tensor, draws: Draws, sampler: Sampler | None = None) -> tuple[list[int], list[float]]:
    """The next token of each row, and its log-prob. Waits for the device, once."""
    numbers = (sampler or choose_sampler(logits.device.type)).scan(logits, draws).fetch()
    return numbers[0].astype(np.int64).tolist(), numbers[2].tolist()


def compute_scores(
    logits: Tensor, tokens: Tensor, draws: Draws, ends: frozenset[int], sampler: Sampler | None = None
) -> Tensor:
    """(4, rows) in float32: margin and log-prob of each row's token, log-prob of the likeliest of the tokens `ends`,
    and whether the row's logits are finite. Waits for nothing: `check_scores` does."""
    scan = (sampler or choose_sampler(logits.device.type)).scan(logits, draws, tokens)
    if ends:
        found = scan.get_logprobs(logits[:, torch.tensor(sorted(ends), device=logits.device)], draws.temperature)
        likeliest = found.amax(dim=1)
    else:
        likeliest = torch.full_like(scan.logprobs, LOGPROB_MIN)
    return torch.stack((scan.margins, scan.logprobs, likeliest, scan.numbers[5])).float()


def check_scores(scores: Tensor) -> NDArray[np.float32]:
    """Margins, log-probs and end log-probs on the CPU, from `compute_scores`."""
    numbers: NDArray[np.float32] = scores.cpu().numpy()
    if not numbers[3].all():
        raise LocalError(LOGITS_NOT_FINITE)
    return numbers[:3]


def get_token_logprobs(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-prob of each row's token, at most 0: rounding may put a certain token above."""
    logprobs = (logits if temperature == 0 else logits / temperature).log_softmax(dim=1)
    return logprobs.gather(1, tokens[:, None])[:, 0].clamp(max=0.0)


@cache
def choose_sampler(device: str) -> Sampler:
    """For the type of a device."""
    if device == "cpu":
        return NumpySampler()
    if importlib.util.find_spec("triton") is None:
        log.warning(
            "Triton is not installed: sampling on %s uses torch's operations, which are many times slower", device
        )
        return TorchSampler()
    # Comes with torch's builds for GPUs only.
    from prime_node.engine.torch.triton_sampling import TritonSampler

    return TritonSampler()


class TorchSampler:
    """torch's operations, on any device."""

    def scan(self, logits: Tensor, draws: Draws, tokens: Tensor | None = None) -> RowScan:
        seeds, positions = draws.send(logits.device)
        scan = scan_rows_torch(logits, draws.temperature, seeds, positions)
        own = scan.winners if tokens is None else tokens
        scores = score_tokens_torch(logits, draws.temperature, seeds, positions, own)
        plain = logits.gather(1, own[:, None].long())[:, 0].double()
        if draws.temperature != 0:
            plain = plain / draws.temperature
        margins = (scan.best - scores).clamp_(min=0.0)
        logprobs = (plain - scan.tops - scan.log_sums).clamp_(max=0.0)
        columns = (scan.winners.double(), margins, logprobs, scan.tops, scan.log_sums, scan.is_finite.double())
        return RowScan(torch.stack(columns))


class NumpySampler:
    """For a CPU: native/draws.c finds the tokens that can win, and the reference chooses among them."""

    def __init__(self, kernels: Any = None) -> None:
        self._kernels = kernels or get_draw_kernels()

    def scan(self, logits: Tensor, draws: Draws, tokens: Tensor | None = None) -> RowScan:
        array, temperature = logits.numpy(), draws.temperature
        check_shapes(array.shape, temperature, draws.seeds.shape, draws.positions.shape)
        if self._kernels is None or array.dtype != np.float32 or not array.flags.c_contiguous:
            winners, best, tops, sums = scan_with_numpy(array, draws)
        else:
            winners, best, tops, sums = self._scan_natively(array, draws)
        own = winners if tokens is None else tokens.numpy()
        plain = np.take_along_axis(array, own[:, None].astype(np.int64), axis=1)[:, 0].astype(np.float64)
        scale = temperature or 1.0
        numbers = np.empty((len(RowScan.COLUMNS), len(array)), np.float64)
        numbers[0] = winners
        numbers[1] = np.maximum(best - score_tokens(array, temperature, draws.seeds, draws.positions, own), 0.0)
        numbers[3], numbers[4], numbers[5] = tops / scale, np.log(sums), 1.0
        numbers[2] = np.minimum(plain / scale - numbers[3] - numbers[4], 0.0)
        return RowScan(torch.from_numpy(numbers))

    def _scan_natively(
        self, logits: NDArray[np.float32], draws: Draws
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        rows, vocabulary = logits.shape
        first, second = compute_row_keys(draws.seeds, draws.positions.astype(np.uint32))
        tiles = np.empty(self._kernels.draws_workspace(vocabulary), np.uint8)
        tops, sums = np.empty(rows, np.float32), np.empty(rows, np.float64)
        found, near = np.empty(rows, np.int64), np.empty((rows, NEAR_MAX), np.int32)
        places = [array.ctypes.data for array in (first, second, tiles)]
        outs = [array.ctypes.data for array in (tops, sums, found, near)]
        self._kernels.draws_scan(logits.ctypes.data, rows, vocabulary, draws.temperature, *places, NEAR_MAX, *outs)
        if not np.isfinite(tops).all():
            raise LocalError(LOGITS_NOT_FINITE)
        winners, best = near[:, 0].astype(np.int64), tops.astype(np.float64)
        if draws.temperature != 0:
            many = found > NEAR_MAX
            inside = np.arange(NEAR_MAX) < np.where(many, 1, found)[:, None]
            all_rows, columns = np.nonzero(inside)[0], near[inside].astype(np.int64)
            bits = compute_token_bits(first[all_rows], second[all_rows], columns.astype(np.uint32))
            best, winners = choose_among(logits[all_rows, columns], draws.temperature, bits, all_rows, columns)
            for row in np.flatnonzero(many):
                here = slice(row, row + 1)
                best[here], winners[here] = find_winners(
                    logits[here], draws.temperature, draws.seeds[here], draws.positions[here]
                )
        return winners, best, tops.astype(np.float64), sums


def scan_with_numpy(
    logits: NDArray[Any], draws: Draws
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Winners, their scores, the largest logits, and the sums of exp((logit - largest) / T)."""
    rows = len(logits)
    winners, best, tops, sums = np.empty(rows, np.int64), *np.empty((3, rows), np.float64)
    # A row at a time: a vocabulary stays in the cache, and a few more calls cost little beside it.
    for row in range(rows):
        here = slice(row, row + 1)
        best[here], winners[here] = find_winners(
            logits[here], draws.temperature, draws.seeds[here], draws.positions[here]
        )
        tops[row] = top = logits[row].max()
        sums[row] = np.exp((logits[row] - top) / (draws.temperature or 1.0)).sum(dtype=np.float64)
    return winners, best, tops, sums


@cache
def get_draw_kernels() -> Any:
    """native/draws.c; None if it was not compiled."""
    kernels = library("draws")
    if kernels is None:
        return None
    kernels.draws_workspace.argtypes, kernels.draws_workspace.restype = [SIZE], SIZE
    kernels.draws_scan.argtypes = [POINTER, SIZE, SIZE, ctypes.c_double, *[POINTER] * 3, SIZE, *[POINTER] * 4]
    kernels.draws_scan.restype = None
    return kernels
