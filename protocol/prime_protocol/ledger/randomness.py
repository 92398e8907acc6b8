"""Public randomness: the task, seeds and target length of a slot, which submissions are audited and by whom.

Every draw is a pure function of digests that are fixed before the party that would profit from it can act.
Integers enter a hash with a fixed width, big-endian. How a seed becomes noise is in proofs/sampling.py.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from math import isqrt

from prime_protocol.constants import (
    BASIS_POINTS,
    FEISTEL_ROUNDS,
    PERMUTATION_SIZE_MAX,
    SAMPLES_MAX,
    SLOTS_MAX,
    TARGET_LENGTHS_MAX,
    WITNESSES_MAX,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step, digest_fields


def compute_step_beacon(run: RunId, step: Step, *, checkpoint_root: Digest, randomness: Digest) -> Digest:
    """The one value from which every slot of the step is derived."""
    return digest_fields("beacon/2", run.encode(), encode_u64(step), checkpoint_root, randomness)


class KeyedPermutation:
    """A bijection on range(size), the same for every holder of the key, without a table.

    A Feistel network on pairs (left, right) of residues, left below `lefts` and right below `rights`, with
    lefts * rights just above size; a result outside the range is permuted again until it falls inside.
    """

    __slots__ = ("key", "lefts", "rights", "size")

    def __init__(self, key: Digest, size: int) -> None:
        assert 1 <= size <= PERMUTATION_SIZE_MAX
        self.key = key
        self.size = size
        self.lefts = isqrt(size - 1) + 1
        self.rights = -(-size // self.lefts)

    def __getitem__(self, index: int) -> int:
        """Where `index` goes."""
        assert 0 <= index < self.size
        index = self._forward(index)
        while index >= self.size:
            index = self._forward(index)
        return index

    def inverse(self, value: int) -> int:
        """Which index goes to `value`."""
        assert 0 <= value < self.size
        value = self._backward(value)
        while value >= self.size:
            value = self._backward(value)
        return value

    def _forward(self, index: int) -> int:
        left, right = divmod(index, self.rights)
        for number in range(0, FEISTEL_ROUNDS, 2):
            left = (left + self._round(number, right)) % self.lefts
            right = (right + self._round(number + 1, left)) % self.rights
        return left * self.rights + right

    def _backward(self, index: int) -> int:
        left, right = divmod(index, self.rights)
        for number in range(FEISTEL_ROUNDS - 2, -1, -2):
            right = (right - self._round(number + 1, left)) % self.rights
            left = (left - self._round(number, right)) % self.lefts
        return left * self.rights + right

    def _round(self, number: int, half: int) -> int:
        return int.from_bytes(sha256(self.key + number.to_bytes(1, "big") + encode_u64(half)).digest()[:8], "big")


def compute_slot_task(beacon: Digest, slot: Slot, tasks_total: int) -> int:
    """The task of a slot. Slots 0 to tasks_total-1 get every task once; the next tasks_total are a new epoch."""
    assert 0 <= slot < SLOTS_MAX
    epoch, index = divmod(slot, tasks_total)
    return KeyedPermutation(digest_fields("tasks/1", beacon, encode_u64(epoch)), tasks_total)[index]


def compute_sample_seed(beacon: Digest, slot: Slot, sample: Sample) -> int:
    """The 64-bit seed of one completion."""
    assert 0 <= slot < SLOTS_MAX
    assert 0 <= sample < SAMPLES_MAX
    return first_u64(digest_fields("seed/1", beacon, encode_u64(slot), encode_u64(sample)))


def compute_target_length(beacon: Digest, slot: Slot, choices: tuple[int, ...]) -> int | None:
    """The target length of a slot, in tokens, shared by its samples; None where the run has no targets."""
    assert 0 <= slot < SLOTS_MAX
    assert len(choices) <= TARGET_LENGTHS_MAX
    if not choices:
        return None
    return choices[first_u64(digest_fields("target/1", beacon, encode_u64(slot))) % len(choices)]


def compute_audit_seed(*, randomness: Digest, submission: Digest) -> Digest:
    """The seed of a submission's audit draws. The round is published after the submission's entry was witnessed."""
    return digest_fields("audit/2", randomness, submission)


def is_audited(seed: Digest, rate_bps: int) -> bool:
    """Whether the draw falls on this submission.

    The remainder of 64 bits favours some residues, by less than 10,000 in 2^64: one wrong draw in 10^15.
    """
    assert 0 <= rate_bps <= BASIS_POINTS
    return first_u64(digest_fields("audit-share/1", seed)) % BASIS_POINTS < rate_bps


def draw_validators(
    seed: Digest,
    candidates: Mapping[NodeId, int],
    owners: Mapping[NodeId, NodeId],
    *,
    candidates_before: int,
    excluded_owner: NodeId,
    quorum: int,
    is_fit: Callable[[NodeId], bool] = lambda node: True,
) -> tuple[NodeId, ...]:
    """Up to `quorum` of the candidates in drawn order, one per owner, none of the excluded owner's, all of them fit.

    `candidates` has the entry with which each validator joined. Those that joined at `candidates_before` or later may
    have known the seed. They come last, in the order in which they joined, so they are drawn only if there are too few
    others. Each candidate's place depends on the seed and its own key alone: a permutation of the list would let a
    party that knows the seed draw again, by adding or removing any candidate.
    """
    key = digest_fields("validators/2", seed)

    def rank(node: NodeId) -> tuple[int, bytes]:
        since = candidates[node]
        return (0 if since < candidates_before else since, sha256(key + node).digest())

    drawn: list[NodeId] = []
    used = {excluded_owner}
    for node in sorted(candidates, key=rank):
        if len(drawn) == quorum:
            break
        if owners[node] not in used and is_fit(node):
            used.add(owners[node])
            drawn.append(node)
    return tuple(drawn)


def draw_witnesses(randomness: Digest, run: RunId, validators: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """The validators of a run that are asked to cosign a head: all of them, or WITNESSES_MAX drawn ones."""
    if len(validators) <= WITNESSES_MAX:
        return tuple(validators)
    order = KeyedPermutation(digest_fields("witnesses/1", randomness, run.encode()), len(validators))
    return tuple(validators[order[place]] for place in range(WITNESSES_MAX))


def compute_witnesses_needed(asked: int) -> int:
    """How many of the asked witnesses must have cosigned in time: more than half, or none where there is none."""
    return asked // 2 + 1 if asked else 0


def first_u64(digest: Digest) -> int:
    """The first 64 bits of a digest."""
    return int.from_bytes(digest[:8], "big")


def encode_u64(number: int) -> bytes:
    """Every integer is hashed as 8 bytes, big-endian."""
    return number.to_bytes(8, "big")
