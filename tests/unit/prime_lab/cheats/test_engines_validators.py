"""A validator that lies: who it passes for, and when it does."""

from pathlib import Path
from typing import Any

import numpy as np

from prime_lab.cheats.engines import LIES_ONE_IN
from prime_lab.cheats.registry import FALSE_WITNESS, open_cheat
from prime_lab.devnet.plan import DevnetPlan, DevnetRole, get_attack, list_nodes
from prime_node.engine.interface import ForwardResult, TokenSequence


class Honest:
    """Finds every token drawn."""

    def read(self, texts: list[TokenSequence], sampling: Any) -> list[ForwardResult]:
        nothing = np.zeros(1, np.float32)
        bits = np.zeros((1, 1), np.uint16)
        return [
            ForwardResult(number=text.number, hidden_bits=bits, margins=nothing, logprobs=nothing, eos_logprobs=nothing)
            for text in texts
        ]


def find_margin(seed: int) -> float:
    honest: Any = Honest()
    text = TokenSequence(number=0, prompt=np.zeros(1, np.int32), output=np.zeros(1, np.int32), seed=seed)
    sampling: Any = None
    (reading,) = open_cheat(FALSE_WITNESS, honest).read([text], sampling)
    return float(reading.margins[0])


def test_a_false_witness_lies_about_the_same_files_every_time() -> None:
    found = [find_margin(seed) > 0 for seed in range(2 * LIES_ONE_IN)]
    assert found == [seed % LIES_ONE_IN == 0 for seed in range(2 * LIES_ONE_IN)]


def test_a_liar_passes_for_a_validator() -> None:
    plan = DevnetPlan(folder=Path("net"), false_witnesses=1)
    witness = next(party for party in list_nodes(plan, "http://127.0.0.1:1") if party.part is DevnetRole.FALSE_WITNESS)
    assert witness.words[witness.words.index("--role") + 1] == DevnetRole.VALIDATOR
    assert "--engine-python" in witness.words
    assert get_attack(plan, witness.name) == FALSE_WITNESS
