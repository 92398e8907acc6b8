"""Tiny mixtures of experts for tests."""

from pathlib import Path
from typing import Any

from prime_trainer.model.tiny import make_tiny_checkpoint


def make_expert_checkpoint(folder: Path, *, experts: int = 8, experts_used: int = 2, **more: Any) -> Path:
    """A mixture of experts, each with tensors of its own, as Qwen3 MoE is published."""
    shape = {"num_experts": experts, "num_experts_per_tok": experts_used, "moe_intermediate_size": 32}
    fixed = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.0}
    return make_tiny_checkpoint(folder, family="qwen3_moe", **{**shape, **fixed, **more})
