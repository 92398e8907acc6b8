"""A worker's leases: what a bad measurement of its own pace does to it, and what it does not."""

from prime_node.agent.assignments import LeaseAssignments
from prime_node.agent.events import FinishedFile, Generate
from prime_protocol.ledger.entries import LeaseGranted
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Slot, Step
from prime_protocol.wire.messages import CheckpointRef
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN

KEY = WalletKey.from_secret(b"\x05" * 32)
ROOT = Digest(b"\x01" * 32)
WORK = FinishedFile(
    checkpoint_root=ROOT, file_digest=ROOT, rollout_root=ROOT, file_bytes=1, output_tokens=64, context_tokens=64
)


def lease(number: int, slots: int, now_ms: int) -> LeaseGranted:
    return LeaseGranted(
        lease=number,
        node=KEY.node,
        step=Step(0),
        checkpoint_step=Step(0),
        first_slot=Slot(0),
        slots=slots,
        deadline_ms=now_ms + 60_000,
        speculative=False,
    )


def test_a_slow_first_lease_does_not_make_a_node_give_back_every_other() -> None:
    leases = LeaseAssignments(KEY, NetworkId("devnet"), RunId("demo"), EMBEDDED_DOMAIN)
    leases.apply_weights(CheckpointRef(step=Step(0), root=ROOT, manifest=ROOT, beacon=ROOT), 0)
    leases.checkpoints[Step(0)] = ROOT
    leases.accept(lease(0, 1, 0), 0)
    leases.advance(0, 0)
    assert leases.finish(0, WORK, 20_000, 20_000) is not None, "the engine's start is in its time"
    given_back = 0
    for number in range(1, 20):
        leases.accept(lease(number, 64, 30_000), 30_000)
        effects, returned = leases.advance(30_000, 30_000)
        if effects:
            assert isinstance(effects[0], Generate)
            break
        given_back += len(returned)
    assert 0 < given_back < 10, "20 s for a slot is believed for a while, not for ever"
