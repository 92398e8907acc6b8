"""The Triton sampler beside numpy's, in Triton's interpreter, which must be asked for before Triton is imported.

    TRITON_INTERPRET=1 python tests/support/processes/triton_trials.py

Prints one line of JSON: by case, whether winners and margins are the same bit by bit, and how far log-probs differ.
"""

import json
import os
import sys

import numpy as np
import torch

from prime_node.engine.torch.draws import RowScan
from prime_node.engine.torch.sampling import NumpySampler
from prime_node.engine.torch.triton_sampling import TritonSampler
from support.logits import CASES, make_draws

SMALL = 30_000
"""Logits."""


def try_case(name: str) -> dict[str, object]:
    array, temperature = CASES[name]()
    draws = make_draws(len(array), temperature)
    # Rows are further apart than they are long, as where a vocabulary was padded. The padding would win.
    logits = torch.nn.functional.pad(torch.from_numpy(array), (0, 3), value=3.4e38)[:, : array.shape[1]]
    tokens = torch.arange(len(array)) * 7919 % array.shape[1]
    # The interpreter takes long over a whole vocabulary: there the winner of a scan with given tokens has to do.
    given = (tokens,) if array.size > SMALL else (None, tokens)
    wanted = [NumpySampler().scan(logits, draws, each).fetch() for each in given]
    found = [TritonSampler().scan(logits, draws, each).fetch() for each in given]
    pairs = [
        dict(zip(RowScan.COLUMNS, zip(*each, strict=True), strict=True)) for each in zip(wanted, found, strict=True)
    ]
    return {
        "winners": all(np.array_equal(*pair["winner"]) for pair in pairs),
        "margins": all(np.array_equal(*pair["margin"]) for pair in pairs),
        "logprobs": max(float((abs(a - b) / (1 + abs(a))).max()) for a, b in (pair["logprob"] for pair in pairs)),
    }


def main() -> None:
    assert os.environ["TRITON_INTERPRET"] == "1"
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # numpy stands in for a GPU, which does not warn either
    print(json.dumps({name: try_case(name) for name in CASES}))


if __name__ == "__main__":
    sys.exit(main())
