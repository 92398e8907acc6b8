"""Launches the head's tile kernels on the device of the logits."""

from typing import Any

import torch

from prime_trainer.model.head import RowGradients, RowState
from prime_trainer.model.triton_kernels import BLOCK, WARPS, differentiate_rows, update_rows

Tensor = Any


class TritonTiles:
    """Two launches for each tile of logits, one forward and one backward."""

    def update(self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, state: RowState) -> None:
        rows, columns = logits_RC.shape
        update_rows[(rows,)](
            logits_RC,
            targets_R,
            temperature_R,
            state.top_T,
            state.sum_T,
            state.weighted_T,
            state.target_T,
            logits_RC.stride(0),
            columns,
            BLOCK=BLOCK,
            num_warps=WARPS,
        )

    def differentiate(
        self, logits_RC: Tensor, targets_R: Tensor, temperature_R: Tensor, known: RowGradients, dtype: Any
    ) -> Tensor:
        rows, columns = logits_RC.shape
        # A tile that is wanted in its own type is overwritten, which each program does with its own block only.
        grad_RC = logits_RC if logits_RC.dtype == dtype else torch.empty_like(logits_RC, dtype=dtype)
        entropy_grad_R = known.entropy_grad_T
        differentiate_rows[(rows, -(-columns // BLOCK))](
            logits_RC,
            targets_R,
            temperature_R,
            known.log_sum_T,
            known.entropy_T,
            known.logp_grad_T.contiguous(),
            known.logp_grad_T if entropy_grad_R is None else entropy_grad_R.contiguous(),
            grad_RC,
            logits_RC.stride(0),
            grad_RC.stride(0),
            columns,
            BLOCK=BLOCK,
            HAS_ENTROPY=entropy_grad_R is not None,
            num_warps=WARPS,
        )
        return grad_RC
