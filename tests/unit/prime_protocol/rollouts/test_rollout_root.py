"""The rollout root moves with every field of every row and of the header, and a single row can be proven."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    MerkleTree,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_node_hash,
    verify_inclusion,
)
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutFile,
    RolloutHeader,
    compute_header_digest,
    compute_rollout_leaf,
    compute_rollout_leaves,
    compute_rollout_root,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId
from support.rollout_examples import HEADER, rollouts

OTHER_ROW: dict[str, Any] = {
    "slot": 99,
    "sample": 9,
    "task": 1,
    "temperature": 0.5,
    "target_length": None,
    "finish": FinishReason.EOS,
    "prompt_tokens": np.array([1], np.int32),
    "output_tokens": np.array([1], np.int32),
    "output_logprobs": np.array([-0.25], np.float32),
    "proofs": b"",
}
OTHER_HEADER: dict[str, Any] = {
    "run": RunId("other"),
    "step": 8,
    "checkpoint_root": Digest(bytes(32)),
    "lease": 42,
    "node": NodeId(bytes(20)),
}


def root(header: RolloutHeader, rows: list[Rollout]) -> Digest:
    return compute_rollout_root(RolloutFile(header, tuple(rows)))


def test_every_field_is_listed_here() -> None:
    assert set(OTHER_ROW) == {field.name for field in fields(Rollout)}
    assert set(OTHER_HEADER) == {field.name for field in fields(RolloutHeader)}


@pytest.mark.parametrize("name", OTHER_ROW)
def test_every_field_of_a_row_moves_the_root(name: str) -> None:
    rows = rollouts()
    before = root(HEADER, rows)
    rows[4] = replace(rows[4], **{name: OTHER_ROW[name]})
    assert root(HEADER, rows) != before


@pytest.mark.parametrize("name", OTHER_HEADER)
def test_every_field_of_the_header_moves_every_leaf(name: str) -> None:
    other = replace(HEADER, **{name: OTHER_HEADER[name]})
    pairs = zip(compute_rollout_leaves(HEADER, rollouts()), compute_rollout_leaves(other, rollouts()), strict=True)
    assert all(leaf != moved for leaf, moved in pairs)


def test_order_and_number_of_rows_move_the_root() -> None:
    rows = rollouts()
    roots = {root(HEADER, rows), root(HEADER, rows[::-1]), root(HEADER, rows[:-1]), root(HEADER, [*rows, rows[0]])}
    assert len(roots) == 4


def test_signed_zero_moves_the_root() -> None:
    rows = [replace(rollouts()[0], output_logprobs=np.array([zero], np.float32)) for zero in (0.0, -0.0)]
    assert root(HEADER, rows[:1]) != root(HEADER, rows[1:])


def test_root_of_two_rows_is_their_leaves_node() -> None:
    first, second = rollouts()[:2]
    bound = compute_header_digest(HEADER)
    assert root(HEADER, [first, second]) == compute_node_hash(
        compute_rollout_leaf(bound, first), compute_rollout_leaf(bound, second)
    )


@pytest.mark.parametrize("index", range(6))
def test_one_row_is_proven_without_the_others(index: int) -> None:
    rows = rollouts()
    proof = build_inclusion_proof(index, 6, MerkleTree(compute_rollout_leaves(HEADER, rows)).get_node)
    leaf = compute_rollout_leaf(compute_header_digest(HEADER), rows[index])
    verify_inclusion(leaf, proof, index=index, size=6, root=root(HEADER, rows))
    edited = replace(rows[index], output_tokens=rows[index].output_tokens + np.int32(1))
    with pytest.raises(RemoteError, match="inclusion"):
        leaf = compute_rollout_leaf(compute_header_digest(HEADER), edited)
        verify_inclusion(leaf, proof, index=index, size=6, root=root(HEADER, rows))


def test_leaf_is_these_bytes() -> None:
    row = replace(rollouts()[0], **OTHER_ROW)
    parts = [
        b"prime-swarm/rollout/1",
        compute_header_digest(HEADER),
        (99).to_bytes(8, "big"),
        (9).to_bytes(8, "big"),
        (1).to_bytes(8, "big"),
        bytes.fromhex("3fe0000000000000"),
        b"",
        b"\x00",
        bytes.fromhex("01000000"),
        bytes.fromhex("01000000"),
        bytes.fromhex("000080be"),
        b"",
    ]
    wanted = compute_leaf_hash(b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    assert compute_rollout_leaf(compute_header_digest(HEADER), row) == wanted
