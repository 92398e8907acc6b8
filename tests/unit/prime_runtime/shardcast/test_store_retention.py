"""What is kept is enough to reach every kept step, from nothing or from the newest checkpoint, and nothing more."""

from dataclasses import dataclass

import pytest

from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.ids import Digest, Step
from prime_runtime.shardcast.store import choose_removable


@dataclass
class FakeManifest:
    step: Step
    kind: ManifestKind


@dataclass
class FakeSigned:
    manifest: FakeManifest
    digest: Digest


def name(step: int, kind: ManifestKind) -> Digest:
    return Digest(bytes([kind is ManifestKind.DELTA]) * 30 + step.to_bytes(2, "big"))


def make(keyframes: set[int], newest: int) -> list[FakeSigned]:
    made = [
        FakeSigned(FakeManifest(Step(step), ManifestKind.KEYFRAME), name(step, ManifestKind.KEYFRAME))
        for step in keyframes
    ]
    for step in range(1, newest + 1):
        made.append(FakeSigned(FakeManifest(Step(step), ManifestKind.DELTA), name(step, ManifestKind.DELTA)))
    return made


@pytest.mark.parametrize(
    ("keyframes", "newest", "kept"),
    [
        ({0}, 3, {"K0", "D1", "D2", "D3"}),
        ({0}, 9, {"K0", *(f"D{step}" for step in range(1, 10))}),
        ({0, 5}, 9, {"K5", *(f"D{step}" for step in range(5, 10))}),
        ({0, 4}, 9, {"K4", *(f"D{step}" for step in range(5, 10))}),
        ({0, 7}, 9, {"K0", "K7", *(f"D{step}" for step in range(1, 10))}),
    ],
)
def test_the_last_five_steps_and_the_way_to_them_are_kept(keyframes: set[int], newest: int, kept: set[str]) -> None:
    assert find_left(make(keyframes, newest)) == kept


@pytest.mark.parametrize(
    ("keyframes", "newest", "kept"),
    [
        ({0}, 3, {"K0", "D1", "D2", "D3"}),
        ({0}, 4, {"K0", "D1", "D2", "D3", "D4"}),
        ({0}, 9, {f"D{step}" for step in range(5, 10)}),
        ({0}, 300, {f"D{step}" for step in range(296, 301)}),
        ({0, 7}, 9, {"K7", *(f"D{step}" for step in range(5, 10))}),
        ({0, 4}, 9, {f"D{step}" for step in range(5, 10)}),
    ],
)
def test_who_goes_on_from_its_own_checkpoint_keeps_the_last_five_steps_alone(
    keyframes: set[int], newest: int, kept: set[str]
) -> None:
    assert find_left(make(keyframes, newest), keeps_way=False) == kept


def find_left(made: list[FakeSigned], *, keeps_way: bool = True) -> set[str]:
    removed = set(choose_removable(made, keeps_way=keeps_way))  # type: ignore[arg-type]
    return {
        f"{'D' if each.manifest.kind is ManifestKind.DELTA else 'K'}{each.manifest.step}"
        for each in made
        if each.digest not in removed
    }


def test_nothing_is_removed_of_nothing() -> None:
    assert choose_removable([]) == choose_removable([], keeps_way=False) == []
