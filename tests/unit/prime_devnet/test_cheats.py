"""Cheaters: what each writes passes the cheater's own check, and no honest engine's."""

from pathlib import Path

import numpy as np
import pytest
from tiny_models import EOS, LETTERS, make_checkpoint

from prime_devnet.cheating_child import write_interpreter
from prime_devnet.cheats import CHEATS, PROOF_CHEATS, open_cheat
from prime_devnet.cheats_proofs import measure_blindly
from prime_node.engine.measuring import Claim, measure
from prime_node.engine.seam import Completion, Engine, Order, Sampling, Text
from prime_node.engine.torch_engine import TorchEngine
from prime_protocol.ids import Digest
from prime_protocol.toploc import parse_proofs
from prime_protocol.toploc_verify import Thresholds, judge, verify_proofs

SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS}), tokens_max=8)
MARGIN_MAX = 0.05
NEAR = {"forged-logprobs", "fp8-cache", "fp8-weights", "int8-cache", "int8-weights", "older-checkpoint"}
"""Too near to the truth for a few tokens and loose bounds, or not about tokens; tests/attacks has them all."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    return make_checkpoint(place / "old", seed=1), make_checkpoint(place / "new", seed=2)


def make_orders() -> list[Order]:
    prompts = ["^52814>", "^00917>", "^33333>", "^98765>"]
    return [
        Order(number=number, prompt=np.array([LETTERS.index(letter) for letter in text], np.int32), seed=1000 + number)
        for number, text in enumerate(prompts)
    ]


def find_faults(engine: Engine, orders: list[Order], completions: list[Completion]) -> int:
    """Rows that an audit with this engine would reject."""
    made = {each.number: each for each in completions}
    texts = [Text(number=o.number, prompt=o.prompt, output=made[o.number].tokens, seed=o.seed) for o in orders]
    faults = 0
    for reading in engine.read(texts, SAMPLING):
        completion = made[reading.number]
        proofs = parse_proofs(completion.proofs, tokens=len(completion.tokens), hidden=engine.facts.hidden)
        wrong = judge(verify_proofs(proofs, reading.hidden_bits, seed=Digest(bytes(32))), Thresholds())
        faults += bool(wrong) or bool(reading.margins.max() > MARGIN_MAX)
    return faults


@pytest.mark.parametrize("name", sorted(CHEATS.keys() - NEAR - PROOF_CHEATS.keys()))
def test_a_cheat_fools_its_own_node_and_no_other(name: str, folders: tuple[Path, Path]) -> None:
    old, new = folders
    honest = TorchEngine(device="cpu", precision="float32", threads=1, batch_max=None)
    cheat = open_cheat(name, TorchEngine(device="cpu", precision="float32", threads=1, batch_max=None))
    cheat.load(old)
    cheat.load(new)
    honest.load(new)
    orders = make_orders()
    completions = list(cheat.generate(orders, SAMPLING))
    assert sorted(each.number for each in completions) == [order.number for order in orders]
    assert find_faults(cheat, orders, completions) == 0
    assert find_faults(honest, orders, completions) >= 2
    assert find_faults(honest, orders, list(honest.generate(orders, SAMPLING))) == 0


@pytest.mark.parametrize("name", sorted(PROOF_CHEATS))
def test_a_cheat_about_proofs_leaves_the_tokens_and_only_its_own_check_is_blind(
    name: str, folders: tuple[Path, Path]
) -> None:
    engine = TorchEngine(device="cpu", precision="float32", threads=1, batch_max=None)
    cheat = open_cheat(name, engine)
    cheat.load(folders[1])
    orders, long = make_orders(), Sampling(temperature=1.0, eos=frozenset(), tokens_max=70)
    true = {each.number: each for each in engine.generate(orders, long)}
    made = {each.number: each for each in cheat.generate(orders, long)}
    texts = [Text(number=o.number, prompt=o.prompt, output=made[o.number].tokens, seed=o.seed) for o in orders]
    bounds, seed, seen = Thresholds(), Digest(bytes(32)), 0
    for reading in engine.read(texts, long):
        done = made[reading.number]
        assert done.tokens.tolist() == true[reading.number].tokens.tolist()
        assert len(done.proofs) == len(true[reading.number].proofs)
        claim = Claim(text=texts[reading.number], logprobs=done.logprobs, proofs=done.proofs)
        assert not judge(measure_blindly(claim, reading, seed=seed).chunks, bounds)
        seen += bool(judge(measure(claim, reading, seed=seed).chunks, bounds))
    assert seen == len(orders)


def test_a_cheaters_interpreter_looks_like_one(tmp_path: Path) -> None:
    path = write_interpreter(tmp_path / "python", "other-seed")
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.read_text().startswith("#!/bin/sh\nexec ")
