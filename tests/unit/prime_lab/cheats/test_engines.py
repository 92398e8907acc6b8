"""Cheaters: what each writes passes the cheater's own check, and no honest engine's."""

from pathlib import Path

import numpy as np
import pytest

from prime_lab.cheats.process import write_interpreter
from prime_lab.cheats.proof_forgery import measure_ignoring_proofs
from prime_lab.cheats.registry import CHEATS, PROOF_CHEATS, open_cheat
from prime_node.engine.interface import Completion, Engine, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, measure_row
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import parse_proofs
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import EOS_TOKEN, VOCABULARY_CHARACTERS, make_tiny_checkpoint

SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=8)
MARGIN_MAX = 0.05
NEAR = {"forged-logprobs", "fp8-cache", "fp8-weights", "int8-cache", "int8-weights", "older-checkpoint"}
NEAR |= {"careful-answer-sheet", "near-honest", "selective-answer-sheet"}
"""Too near to the truth for a few tokens and loose bounds, or not about tokens; tests/attacks has them all."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("models")
    return make_tiny_checkpoint(place / "old", seed=1), make_tiny_checkpoint(place / "new", seed=2)


def make_orders() -> list[GenerateRequest]:
    prompts = ["^52814>", "^00917>", "^33333>", "^98765>"]
    return [
        GenerateRequest(
            number=number,
            prompt=np.array([VOCABULARY_CHARACTERS.index(letter) for letter in text], np.int32),
            seed=1000 + number,
        )
        for number, text in enumerate(prompts)
    ]


def count_faults(engine: Engine, orders: list[GenerateRequest], completions: list[Completion]) -> int:
    """Rows that an audit with this engine would reject."""
    made = {each.number: each for each in completions}
    texts = [TokenSequence(number=o.number, prompt=o.prompt, output=made[o.number].tokens, seed=o.seed) for o in orders]
    faults = 0
    for reading in engine.read(texts, SAMPLING):
        completion = made[reading.number]
        proofs = parse_proofs(completion.proofs, tokens=len(completion.tokens), hidden=engine.facts.hidden)
        wrong = find_faults(verify_proofs(proofs, reading.hidden_bits, seed=Digest(bytes(32))), ToplocThresholds())
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
    assert count_faults(cheat, orders, completions) == 0
    assert count_faults(honest, orders, completions) >= 2
    assert count_faults(honest, orders, list(honest.generate(orders, SAMPLING))) == 0


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
    texts = [TokenSequence(number=o.number, prompt=o.prompt, output=made[o.number].tokens, seed=o.seed) for o in orders]
    bounds, seed, seen = ToplocThresholds(), Digest(bytes(32)), 0
    for reading in engine.read(texts, long):
        done = made[reading.number]
        assert done.tokens.tolist() == true[reading.number].tokens.tolist()
        assert len(done.proofs) == len(true[reading.number].proofs)
        claim = ClaimedRow(sequence=texts[reading.number], logprobs=done.logprobs, proofs=done.proofs)
        assert not find_faults(measure_ignoring_proofs(claim, reading, seed=seed).chunks, bounds)
        seen += bool(find_faults(measure_row(claim, reading, seed=seed).chunks, bounds))
    assert seen == len(orders)


def test_a_cheaters_interpreter_looks_like_one(tmp_path: Path) -> None:
    path = write_interpreter(tmp_path / "python", "other-seed")
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.read_text().startswith("#!/bin/sh\nexec ")
