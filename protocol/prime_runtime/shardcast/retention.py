"""Which versions may go. Pure.

A version is kept while somebody may still need it: the last few steps, and on origins and relays whatever it takes to
get to the oldest of them from nothing, which is the keyframe before it and the deltas in between.

A node that builds every checkpoint goes on from the newest of them. It takes deltas and never holds a second keyframe,
so the way from its first one would grow for ever: it keeps the last few steps alone.
"""

from collections.abc import Iterable

from prime_protocol.ids import Digest, Step
from prime_protocol.manifest import Kind
from prime_protocol.signed_manifest import SignedManifest

VERSIONS_KEPT = 5
"""Steps. Work for older ones is not taken any more in any run with the default lag."""


def choose_removable(
    signed: Iterable[SignedManifest], *, versions: int = VERSIONS_KEPT, keeps_way: bool = True
) -> list[Digest]:
    """Manifests that no kept step needs. `keeps_way`: a newcomer must get to the kept steps from here alone."""
    known = list(signed)
    floor = find_floor([each.manifest.step for each in known], versions)
    if not keeps_way:
        return sorted(each.digest for each in known if each.manifest.step < floor)
    keyframes = [
        each.manifest.step for each in known if each.manifest.kind is Kind.KEYFRAME and each.manifest.step <= floor
    ]
    first = max(keyframes, default=Step(0))
    # The delta into the keyframe's own step leads to it from an older base, which goes.
    return sorted(
        each.digest
        for each in known
        if each.manifest.step < first or (each.manifest.step == first < floor and each.manifest.kind is Kind.DELTA)
    )


def find_floor(steps: Iterable[Step], versions: int) -> Step:
    """The oldest step that is kept for its own sake."""
    newest_first = sorted(set(steps), reverse=True)
    return newest_first[: max(1, versions)][-1] if newest_first else Step(0)
