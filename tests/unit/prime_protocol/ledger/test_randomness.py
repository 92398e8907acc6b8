"""The beacon: draws are even, repeatable, bound to their inputs, and match the committed vectors."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from itertools import permutations
from pathlib import Path

import pytest

from prime_protocol.ledger.randomness import (
    KeyedPermutation,
    compute_audit_seed,
    compute_sample_seed,
    compute_slot_task,
    compute_step_beacon,
    compute_target_length,
    draw_validators,
    is_audited,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step
from support.frequencies import assert_even

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "beacon.json").read_text())
BEACON = Digest(sha256(b"beacon").digest())


def key(number: int) -> Digest:
    return Digest(sha256(b"key %d" % number).digest())


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(20, "big"))


def test_vectors_agree() -> None:
    for case in VECTORS["beacons"]:
        beacon = compute_step_beacon(
            RunId(case["run"]),
            Step(case["step"]),
            checkpoint_root=Digest.parse(case["checkpoint_root"]),
            randomness=Digest.parse(case["randomness"]),
        )
        assert str(beacon) == case["beacon"]
    beacon = Digest.parse(VECTORS["beacons"][0]["beacon"])
    for case in VECTORS["slots"]:
        slot = Slot(case["slot"])
        assert compute_slot_task(beacon, slot, case["tasks_total"]) == case["task"]
        assert compute_sample_seed(beacon, slot, Sample(case["sample"])) == int(case["seed"], 16)
        assert compute_target_length(beacon, slot, tuple(case["choices"])) == case["target_length"]
    for case in VECTORS["permutations"]:
        permutation = KeyedPermutation(Digest.parse(case["key"]), case["size"])
        assert [permutation[index] for index in case["indices"]] == case["images"]


def test_audit_vectors_agree() -> None:
    for case in VECTORS["audits"]:
        seed = compute_audit_seed(
            randomness=Digest.parse(case["randomness"]), submission=Digest.parse(case["submission"])
        )
        assert str(seed) == case["seed"]
        assert is_audited(seed, case["rate_bps"]) == case["is_audited"]
        drawn = draw_validators(
            seed,
            {NodeId.parse(text): joined for text, joined in case["candidates"].items()},
            {NodeId.parse(text): NodeId.parse(owner) for text, owner in case["owners"].items()},
            candidates_before=case["candidates_before"],
            excluded_owner=NodeId.parse(case["excluded_owner"]),
            quorum=case["quorum"],
        )
        assert [str(validator) for validator in drawn] == case["drawn"]


def test_every_input_moves_the_beacon() -> None:
    def beacon(run: str = "a", step: int = 1, checkpoint: int = 1, head: int = 2) -> Digest:
        return compute_step_beacon(RunId(run), Step(step), checkpoint_root=key(checkpoint), randomness=key(head))

    variants = [beacon(), beacon(run="b"), beacon(step=2), beacon(checkpoint=3), beacon(head=3)]
    variants.append(beacon(checkpoint=2, head=1))
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 10])
def test_images_of_two_indices_are_even_over_keys(size: int) -> None:
    pairs = list(permutations(range(size), 2))
    seen: Counter[tuple[int, int]] = Counter()
    for number in range(1500):
        permutation = KeyedPermutation(key(number), size)
        seen[permutation[0], permutation[size - 1]] += 1
    assert_even([seen[pair] for pair in pairs])


def test_inverse_undoes_every_small_permutation() -> None:
    for size in range(1, 24):
        permutation = KeyedPermutation(key(size), size)
        assert [permutation.inverse(permutation[index]) for index in range(size)] == list(range(size))


def test_image_of_an_index_is_even_over_a_large_range() -> None:
    seen = Counter(KeyedPermutation(key(number), 2**40)[12345] * 64 >> 40 for number in range(3000))
    assert_even([seen[cell] for cell in range(64)])


def test_neighbours_do_not_stay_neighbours() -> None:
    permutation = KeyedPermutation(BEACON, 1000)
    gaps = Counter((permutation[index + 1] - permutation[index]) % 1000 // 100 for index in range(999))
    assert_even([gaps[cell] for cell in range(10)])


def test_no_task_repeats_inside_an_epoch_and_epochs_differ() -> None:
    epochs = [[compute_slot_task(BEACON, Slot(epoch * 50 + index), 50) for index in range(50)] for epoch in range(3)]
    assert all(sorted(tasks) == list(range(50)) for tasks in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_seeds_differ_by_slot_and_sample_and_fill_64_bits() -> None:
    seeds = {compute_sample_seed(BEACON, Slot(slot), Sample(sample)) for slot in range(50) for sample in range(20)}
    assert len(seeds) == 1000
    assert all(abs(sum(seed >> bit & 1 for seed in seeds) - 500) < 4.5 * 250**0.5 for bit in range(64))


def test_target_length_is_drawn_evenly_or_absent() -> None:
    choices = (1000, 2000, 3000)
    seen = Counter(compute_target_length(BEACON, Slot(slot), choices) for slot in range(3000))
    assert_even([seen[choice] for choice in choices])
    assert compute_target_length(BEACON, Slot(0), ()) is None


@pytest.mark.parametrize("rate_bps", [1, 500, 5000])
def test_share_of_audits_is_the_rate(rate_bps: int) -> None:
    audited = sum(is_audited(key(number), rate_bps) for number in range(20_000))
    wanted = 2 * rate_bps
    assert abs(audited - wanted) < 4.5 * wanted**0.5


def test_rates_of_nothing_and_all_are_exact() -> None:
    assert not any(is_audited(key(number), 0) for number in range(100))
    assert all(is_audited(key(number), 10_000) for number in range(100))


def draw(
    seed: Digest,
    candidates: Iterable[NodeId],
    owners: Mapping[NodeId, NodeId],
    *,
    excluded: int = 99,
    quorum: int,
    late: Iterable[NodeId] = (),
    is_fit: Callable[[NodeId], bool] = lambda name: True,
) -> tuple[NodeId, ...]:
    """A draw in which the late candidates joined after the head, in their order."""
    joined = {**dict.fromkeys(candidates, 0), **{name: 10 + place for place, name in enumerate(late)}}
    return draw_validators(
        seed, joined, owners, candidates_before=10, excluded_owner=node(excluded), quorum=quorum, is_fit=is_fit
    )


def test_drawn_validators_have_different_owners_and_never_the_excluded_one() -> None:
    candidates = [node(number) for number in range(30)]
    owners = {candidate: node(100 + number % 6) for number, candidate in enumerate(candidates)}
    for number in range(200):
        drawn = draw(key(number), candidates, owners, excluded=103, quorum=3)
        assert len(drawn) == 3
        assert len({owners[validator] for validator in drawn}) == 3
        assert node(103) not in {owners[validator] for validator in drawn}


def test_draw_passes_over_those_who_are_not_fit_and_keeps_the_order_of_the_rest() -> None:
    candidates = [node(number) for number in range(30)]
    owners = {candidate: candidate for candidate in candidates}
    everybody = draw(BEACON, candidates, owners, quorum=30)
    unfit = set(everybody[::2])
    drawn = draw(BEACON, candidates, owners, quorum=5, is_fit=lambda name: name not in unfit)
    assert drawn == everybody[1:10:2]


def test_draw_gives_fewer_when_owners_run_out() -> None:
    candidates = [node(number) for number in range(9)]
    owners = {candidate: node(100 + number % 3) for number, candidate in enumerate(candidates)}
    one_owner = dict.fromkeys(candidates, node(1))
    assert len(draw(BEACON, candidates, owners, excluded=100, quorum=5)) == 2
    assert draw(BEACON, candidates, one_owner, excluded=1, quorum=1) == ()
    assert draw(BEACON, [], {}, excluded=1, quorum=3) == ()
    assert draw(BEACON, candidates, owners, excluded=100, quorum=0) == ()


def test_every_candidate_is_drawn_equally_often() -> None:
    candidates = [node(number) for number in range(12)]
    owners = {candidate: candidate for candidate in candidates}
    seen: Counter[NodeId] = Counter()
    for number in range(1000):
        seen.update(draw(key(number), candidates, owners, quorum=1))
    assert_even([seen[candidate] for candidate in candidates])


@pytest.mark.parametrize("number", range(20))
def test_a_candidate_that_leaves_or_joins_late_changes_nothing_for_the_others(number: int) -> None:
    candidates = [node(each) for each in range(12)]
    owners = {node(each): node(each) for each in range(40)}
    drawn = draw(key(number), candidates, owners, quorum=3)
    joined = [node(each) for each in range(20, 40)]
    assert draw(key(number), candidates, owners, quorum=3, late=joined) == drawn
    for leaver in set(candidates) - set(drawn):
        assert draw(key(number), [each for each in candidates if each != leaver], owners, quorum=3) == drawn
    left = [each for each in candidates if each != drawn[0]]
    assert draw(key(number), left, owners, quorum=2) == drawn[1:], "the others move up in their order"


def test_late_candidates_fill_up_in_the_order_in_which_they_joined() -> None:
    owners = {node(each): node(each) for each in range(40)}
    late = [node(each) for each in (31, 20, 25)]
    drawn = draw(BEACON, [node(1), node(2)], owners, quorum=4, late=late)
    assert (set(drawn[:2]), drawn[2:]) == ({node(1), node(2)}, (node(31), node(20)))
