"""The head's Triton kernels beside torch's operations, in Triton's interpreter: ask for it before Triton is imported.

    TRITON_INTERPRET=1 python tests/support/processes/triton_head_trials.py

Prints one line of JSON: by case, the largest relative error of scores and of gradients.
"""

import json
import os
import sys
from typing import Any

import numpy as np
import torch

from prime_trainer.model import head
from prime_trainer.model.triton_head import TritonTiles

ROWS, WIDTH, VOCABULARY = 5, 16, 9001
TILE = (3, 3 * 4500)
"""Two rows of tiles by three, none of them of whole blocks; the targets lie at their edges."""
TARGETS = (0, 4499, 4500, 8999, 9000)


def compute(kernels: head.TileKernels, dtype: Any, *, has_entropy: bool) -> tuple[list[Any], list[Any]]:
    head.choose_kernels = lambda device: kernels
    torch.manual_seed(0)
    shapes = ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    given = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    temperature = torch.tensor([1.0, 0.5, 2.0, 1.0, 1.0])
    scores = head.score_hidden(*given, torch.tensor(TARGETS), temperature, dtype, has_entropy_gradient=has_entropy)
    loss = (scores[0] * torch.linspace(-1, 1, ROWS)).sum() + (scores[1].sum() if has_entropy else 0)
    return [each.detach() for each in scores], list(torch.autograd.grad(loss, given))


def get_error(found: list[Any], wanted: list[Any]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True))


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # numpy stands in for a GPU, which does not warn either
    head.TILE_SHAPES["cpu"] = TILE
    errors = {}
    for dtype in (torch.float32, torch.bfloat16):
        for has_entropy in (False, True):
            found, wanted = (
                compute(each, dtype, has_entropy=has_entropy) for each in (TritonTiles(), head.TorchTiles())
            )
            name = str(dtype).removeprefix("torch.") + (" with entropy" if has_entropy else "")
            errors[name] = {"scores": get_error(found[0], wanted[0]), "gradients": get_error(found[1], wanted[1])}
    print(json.dumps(errors))


if __name__ == "__main__":
    sys.exit(main())
