"""Write tests/vectors/ledger.json: a small log that holds every type of entry, one of a network whose value is on a
chain, and what they add up to.

    PYTHONPATH=protocol:tests python tests/oracle/make_ledger_vectors.py

Keys and signatures are deterministic, so the same code writes the same bytes. A second implementation replays the
leaves and compares; nothing here is needed for that.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_protocol.constants import RULES_NOTICE_MS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.rewards import compute_refund_nano
from prime_protocol.ledger.snapshots.snapshot import SNAPSHOT_FORMAT, compute_snapshot_digest, encode_snapshot
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.proofs.class_bounds import parse_class_bounds
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.wire.ids import Step
from support.ledger_network import BOND, DAY_MS, NETWORK, ON_CHAIN, PENALTY, RUN, SLASH, TERMS, TOKEN, World, digest

VECTORS = Path(__file__).parents[1] / "vectors" / "ledger.json"
CLASS_BOUNDS = parse_class_bounds(
    (
        "cpu-avx2/torch-2.13/native/float32/tp1 > cpu-avx2/torch-2.13/native/float32/tp1: margin_max=0.01",
        "cpu-avx2/torch-2.13/native/float32/tp1 > nvidia-h100/vllm-0.33/flash-attn/bfloat16/tp2: noise_typical=0.99",
    ),
    Tolerance(),
)
ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


def tell() -> World:
    """An honest step, a failed lease, a slashed cheater, an upheld appeal, an invalid file, two disputes, two findings,
    a file that is not audited, new keys, other rules, and the end."""
    world = World.started(rules=1, validator_slash_nano=PENALTY, stake_min_nano=SLASH)
    world.join("key", Role.WORKER, owner="owner")
    good = world.settled("key", ACCEPT, 0, 2)
    world.write("ann", e.LeaseEnded(lease=world.lease("ann", 2), reason="out of memory"))
    bad = world.submit(world.lease("bob", 3))
    world.judge(bad, FRAUDULENT, FRAUDULENT, ACCEPT)
    world.judge(bad, FRAUDULENT, FRAUDULENT)
    world.settle(bad)
    world.propose(bad)
    wronged = world.submit(world.lease("ann", 4))
    wrong = world.judge(wronged, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.settle(wronged)
    world.propose(wronged)
    invalid = world.submit(world.lease("key", 5))
    outvoted = world.judge(invalid, ACCEPT, INVALID, INVALID)
    world.judge(invalid, INVALID, INVALID)
    assert world.settle(invalid) is INVALID
    world.coordinate(e.ValidatorScored(validator=world.id(outvoted[0]), submission=invalid))
    world.inspect(invalid, outvoted[1])
    disputed = world.submit(world.lease("key", 6))
    for _ in range(3):
        world.judge(disputed, ACCEPT, FRAUDULENT, ACCEPT)
    assert world.settle(disputed) is ACCEPT, "no validator is left to ask, and no inspector is there"
    world.register("inspector", Role.RELAY)
    ruled = world.submit(world.lease("key", 7))
    against = [world.judge(ruled, ACCEPT, FRAUDULENT, ACCEPT)[1] for _ in range(3)]
    world.rule(ruled, ACCEPT)
    assert world.settle(ruled) is ACCEPT
    assert [world.score(validator, ruled) for validator in against] == 3 * [PENALTY]
    changed = replace(world.run.terms, quorum=1, version_next=2, upgrade_by_ms=world.now_ms + DAY_MS)
    world.coordinate(e.RunUpdated(terms=changed))
    world.publish(good)
    world.measure(1, held_out=0.25, reward=0.125)
    world.coordinate(note_snapshot(world))
    world.coordinate(e.LogRestored(size=world.state.size, root=world.state.frontier.root()))
    world.pay_out(0)
    world.appeal("ann", wronged)
    world.agree(wronged, ACCEPT)
    world.overturn(wronged)
    world.credit(wronged)
    world.score(wrong[0], wronged)
    world.wait(TERMS.appeal_ms)
    world.execute(bad)
    world.coordinate(e.NodeStatusSet(node=world.id("bob"), status=NodeStatus.BANNED, reason="cheated"))
    world.settled("key", ACCEPT)
    tell_findings(world)
    tell_rules(world)
    known = replace(world.run.terms, version_min=3, version_next=0, upgrade_by_ms=0, class_bounds=CLASS_BOUNDS)
    world.coordinate(e.RunUpdated(terms=replace(known, audit_probation=0)))
    world.publish()
    world.not_drawn("key")
    world.rotate_log_key("second")
    world.rotate_coordinator("the next coordinator")
    world.set_run(RunStatus.CLOSED)
    world.pay_out(1)
    world.pay_out(3)
    world.write("sponsor", e.PoolReturned(amount_nano=world.state.funds.pools[RUN]))
    world.write("owner", e.DelegationRevoked(node=world.id("key")))
    world.write("owner", e.Unbonded(node=world.id("key"), amount_nano=BOND))
    world.wait(world.state.unbonding_ms)
    world.write("owner", e.Released(node=world.id("key")))
    world.write("owner", e.Withdrawn(amount_nano=world.balance("owner")))
    return world


def note_snapshot(world: World) -> e.SnapshotNoted:
    state = encode_snapshot(NETWORK, world.state)
    return e.SnapshotNoted(size=world.state.size, digest=compute_snapshot_digest(state), format=SNAPSHOT_FORMAT)


def tell_findings(world: World) -> None:
    """A stranger is wrong about one accepted file, and right about another."""
    world.deposit("stranger", 2 * TOKEN)
    honest, forged = world.settled("ann", ACCEPT, 1), world.settled("ann", ACCEPT, 2)
    for name, outcome, end in ((honest, ACCEPT, world.dismiss), (forged, FRAUDULENT, world.uphold)):
        world.file_finding("stranger", name)
        world.agree(name, outcome)
        end(name)
    world.propose(forged)
    world.wait(TERMS.appeal_ms)
    world.execute(forged)


def tell_rules(world: World) -> None:
    """The rules change, and a list of submissions comes in two parts."""
    world.announce_rules(2)
    world.wait(RULES_NOTICE_MS)
    names = [world.settled("key", ACCEPT, slot) for slot in (5, 6)]
    (first, second), step = sorted(names), Step(world.run.latest + 1)
    world.write("trainer", e.SubmissionsListed(step=step, first=0, submissions=(first,)))
    root, manifest = digest(f"weights {step}"), digest(f"manifest {step}")
    _, whole = make_checkpoint_entries(names, step=step, root=root, manifest=manifest)
    world.write("trainer", replace(whole, trained_on=(second,)))
    world.announce_rules(3)
    world.wait(RULES_NOTICE_MS)
    world.note_head()


def tell_on_chain() -> World:
    """Two funders of a pool on a chain, a slash that the court brings into it, pay, and what each funder has back."""
    world = World.started(domain=ON_CHAIN, slash_to=SlashDestination.POOL)
    world.fund("friend", 333 * TOKEN)
    world.settled("ann", ACCEPT)
    bad = world.convicted("bob", 1)
    world.wait(TERMS.appeal_ms)
    world.execute(bad)
    world.forfeit(SLASH)
    world.publish()
    world.pay_out(0)
    world.set_run(RunStatus.CLOSED)
    for name in ("friend", "sponsor"):
        world.write(name, e.PoolReturned(amount_nano=compute_refund_nano(world.state, RUN, world.id(name))))
    return world


def summarise(ledger: Ledger) -> dict[str, Any]:
    """The numbers that a second implementation must reach."""
    state = ledger.state
    run, books = state.runs[RUN], state.funds
    return {
        "entries": state.size,
        "root": str(state.frontier.root()),
        "at_ms": state.at_ms,
        "rules": state.rules.get_version(state.at_ms),
        "deposited_nano": books.deposited_nano,
        "withdrawn_nano": books.withdrawn_nano,
        "burned_nano": books.burned_nano,
        "balances_nano": {str(name): amount for name, amount in sorted((+books.balances).items())},
        "stakes_nano": {f"{place[0]}/{place[1]}": amount for place, amount in sorted((+books.stakes).items())},
        "pool_nano": books.pools[RUN],
        "forfeited_nano": run.forfeited_nano,
        "debts": {f"{place[0]}/{place[1]}": verdicts for place, verdicts in sorted(run.debts.items())},
        "latest_step": run.latest,
        "beacons": [str(run.checkpoints[step].beacon) for step in sorted(run.checkpoints)],
        "nodes": {
            str(name): {
                "owner": str(state.owners[name]),
                "settled": {outcome.value: node.settled[outcome] for outcome in Outcome},
                "streak": run.get_record(name).streak,
                "faults": node.faults,
                "earned_nano": node.earned_nano,
            }
            for name, node in sorted(state.nodes.items())
        },
    }


if __name__ == "__main__":
    stories = {"embedded": tell(), "on_chain": tell_on_chain()}
    vector = {
        "network": NETWORK,
        "logs": {
            name: {"leaves": [leaf.hex() for leaf in told.leaves], "end": summarise(told.ledger)}
            for name, told in stories.items()
        },
    }
    VECTORS.write_text(json.dumps(vector, indent=1) + "\n")
