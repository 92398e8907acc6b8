"""Accusations are kept, stop the work until they are acknowledged, and a claim of others is shown as what it is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_node.log.accusations import KEPT_MAX, SUFFIX, AccusationKeeper, read_accusations
from prime_node.log.replay import Finding, make_accusation
from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.gossip.accusation import Accusation, BrokenRule
from prime_protocol.gossip.messages import ReceivedGossip
from prime_protocol.keys.chain import CoordinatorPeriod
from prime_protocol.ledger import entries as e
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.log.tree_head import VerifierKey
from prime_runtime.clock import SystemClock
from support.gossip_examples import NETWORK, RUN, key_of, said
from support.ledger_network import World
from support.served_log import VKEY, ServedLog, make_keys

WORLD = World.started()
ALONE = WORLD.seal("ann", e.HeadNoted(root=WORLD.state.frontier.root()))
"""Only the coordinator may write it: anyone can see that without the log."""
BY_STATE = WORLD.seal("coordinator", e.HeadNoted(root=compute_leaf_hash(b"another")))
"""Whether the root is right depends on the entries before."""


def accuse(leaf: bytes, rule: BrokenRule = BrokenRule.LEDGER) -> Accusation:
    log = ServedLog([*WORLD.leaves, leaf])
    finding = Finding(rule, len(WORLD.leaves), leaf, "breaks a rule")
    return make_accusation(finding, log.seen().head, log.seen().note, log.read_tile)


class Kept:
    """A keeper and what it told the daemon and the other nodes."""

    def __init__(self, folder: Path, log_key: VerifierKey = VKEY, *, name: str = "me") -> None:
        self.published: list[Accusation] = []
        self.reasons: list[str] = []
        self.key_requests: list[int] = []

        async def publish(accusation: Accusation) -> None:
            self.published.append(accusation)
            raise StopPublishing

        self.keeper = AccusationKeeper(
            folder,
            key_of(name),
            network=NETWORK,
            run=RUN,
            request_keys=lambda: self.key_requests.append(1),
            publish=publish,
            clock=SystemClock(),
        )
        self.keeper.on_change = self.reasons.append
        self.keys = make_keys(WORLD.id("coordinator"), log_key)
        self.keeper.set_keys(self.keys, LOG_ENTRIES_MAX)


class StopPublishing(Exception):
    """Ends the endless repetition."""


def heard(accusation: Accusation, sender: str = "other") -> ReceivedGossip:
    gossip: ReceivedGossip = said(sender, accusation)
    return gossip


def test_an_own_finding_stops_the_work_at_once_and_its_proof_is_kept_for_good(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.reasons == [""]
    kept.keeper.add_finding(40, compute_leaf_hash(BY_STATE), "breaks a rule")
    assert kept.keeper.is_stopped, "even if the coordinator withholds the tiles of the proof"
    kept.keeper.add_own(accuse(BY_STATE))
    assert "THE COORDINATOR BROKE A RULE" in kept.reasons[-1]
    (row,) = kept.keeper.list_kept()
    assert (row["is_own"], row["is_acknowledged"], row["accuser"]) == (True, False, str(key_of("me").node))
    (found,) = read_accusations(tmp_path, NETWORK)
    assert (found.accuser, found.accusation) == (key_of("me").node, accuse(BY_STATE)), "signed by this node"
    again = Kept(tmp_path)
    assert again.keeper.is_stopped, "also after a restart"
    again.keeper.add_finding(40, compute_leaf_hash(BY_STATE), "breaks a rule")
    again.keeper.add_own(accuse(BY_STATE))
    assert len(again.keeper.list_kept()) == 1, "the restarted replay finds it again"


def test_the_owner_acknowledges_and_the_node_works_also_after_a_restart(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.keeper.acknowledge() == "there is nothing to acknowledge"
    kept.keeper.add_own(accuse(BY_STATE))
    assert kept.keeper.acknowledge() == "1 acknowledged; the node takes work again"
    assert (kept.keeper.is_stopped, kept.reasons[-1]) == (False, "")
    again = Kept(tmp_path)
    again.keeper.add_finding(40, compute_leaf_hash(BY_STATE), "breaks a rule")
    again.keeper.add_own(accuse(BY_STATE))
    assert (again.keeper.is_stopped, again.reasons[-1]) == (False, "")
    again.keeper.add_finding(41, compute_leaf_hash(b"another"), "breaks another rule")
    assert again.keeper.is_stopped, "what was not acknowledged counts"
    assert again.keeper.acknowledge().startswith("1 acknowledged")
    assert not again.keeper.is_stopped


def test_an_accusation_against_a_log_that_was_replaced_stops_nothing(tmp_path: Path) -> None:
    Kept(tmp_path).keeper.add_own(accuse(BY_STATE))
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    other = VerifierKey.of("prime-swarm/testnet", Ed25519PrivateKey.from_private_bytes(b"\x09" * 32))
    replaced = Kept(tmp_path, other)
    assert (replaced.keeper.is_stopped, replaced.keeper.list_kept()) == (False, [])
    replaced.keeper.add_received(heard(accuse(ALONE)))
    assert (replaced.keeper.is_stopped, replaced.keeper.list_claims(None)) == (False, [])


def test_an_accusation_of_another_node_that_convicts_by_itself_stops_the_work(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.add_received(heard(accuse(ALONE)))
    assert kept.keeper.is_stopped
    assert kept.keeper.list_kept()[0]["accuser"] == str(key_of("other").node)
    assert Kept(tmp_path).keeper.is_stopped


def test_any_other_accusation_is_a_claim_that_the_own_replay_decides(tmp_path: Path) -> None:
    kept, index = Kept(tmp_path), len(WORLD.leaves)
    for sender in ("a", "b", "b"):
        kept.keeper.add_received(heard(accuse(BY_STATE), sender))
    assert not kept.keeper.is_stopped
    (claim,) = kept.keeper.list_claims(None)
    assert (len(claim["accusers"]), claim["answer"], claim["index"]) == (2, "unknown", index)
    assert kept.keeper.list_claims(index)[0]["answer"] == "unknown", "the replay has not come to it"
    assert kept.keeper.list_claims(index + 1)[0]["answer"] == "refuted"
    kept.keeper.add_own(accuse(BY_STATE))
    assert kept.keeper.list_claims(index)[0]["answer"] == "confirmed"


def test_a_claim_about_a_clock_stays_a_claim(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.add_received(heard(accuse(WORLD.leaves[3], BrokenRule.CLOCK)))
    assert kept.keeper.list_claims(10**6)[0]["answer"] == "unknown"


def test_what_is_kept_is_bounded_and_damaged_files_are_ignored(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for number in range(KEPT_MAX + 5):
        kept.keeper.add_received(heard(accuse(WORLD.seal(f"n{number}", e.HeadNoted(root=compute_leaf_hash(b"x"))))))
        kept.keeper.add_received(heard(accuse(WORLD.seal("coordinator", e.HeadNoted(root=compute_leaf_hash(b"y"))))))
    assert len(kept.keeper.list_kept()) == KEPT_MAX
    assert len(kept.keeper.list_claims(None)) <= 16
    (tmp_path / f"a{SUFFIX}").write_bytes(b"damaged")
    (tmp_path / f"b{SUFFIX}").write_bytes(bytes(10**6))
    assert len(read_accusations(tmp_path, NETWORK)) == KEPT_MAX - 2


async def test_only_own_accusations_are_repeated(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keeper.add_received(heard(accuse(ALONE)))
    kept.keeper.add_own(accuse(BY_STATE))
    try:
        await kept.keeper.run()
    except StopPublishing:
        pass
    assert kept.published == [accuse(BY_STATE)]


def test_an_entry_by_an_unknown_author_waits_until_the_keys_of_the_log_are_asked_for(tmp_path: Path) -> None:
    """Else a message right after a rotation would stop every node that has not heard of it."""
    for successor, is_stopped in ((WORLD.id("ann"), False), (WORLD.id("next"), True)):
        kept = Kept(tmp_path / str(successor))
        kept.keeper.set_keys(kept.keys, len(WORLD.leaves))
        kept.keeper.add_received(heard(accuse(ALONE)))
        assert (kept.keeper.is_stopped, len(kept.key_requests)) == (False, 1)
        assert len(kept.keeper.list_claims(None)) == 1
        rotated = replace(kept.keys, coordinators=(*kept.keys.coordinators, CoordinatorPeriod(1, successor)))
        kept.keeper.set_keys(rotated, LOG_ENTRIES_MAX)
        assert kept.keeper.is_stopped is is_stopped


def test_before_the_key_of_the_log_is_known_nothing_is_judged(tmp_path: Path) -> None:
    given: dict[str, Any] = {"network": NETWORK, "run": RUN, "request_keys": lambda: None}

    async def publish(accusation: Accusation) -> None:
        raise AssertionError("there is nothing to publish")

    keeper = AccusationKeeper(tmp_path, key_of("me"), publish=publish, clock=SystemClock(), **given)
    keeper.add_received(heard(accuse(ALONE)))
    assert not keeper.is_stopped
