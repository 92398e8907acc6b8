"""Accusations that an entry of the log breaks a rule: this node's own, and those of other nodes. Kept, shown, gossiped.

An accusation by this node, or one of another node that convicts the log by itself, stops the work: the node takes no
leases and no audits, and cosigns no heads, until its owner acknowledges it or the log is replaced. Any other is shown
as a claim of its sender. This node's own replay, where it runs, decides whether the claim is true.

Each is kept in a file that holds the signed envelope. A second, empty file beside it says that the owner acknowledged.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_protocol.constants import GOSSIP_FRAME_BYTES_MAX, GOSSIP_REPEAT_MS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.accusation import Accusation, AccusationProof, BrokenRule, judge_accusation
from prime_protocol.gossip.messages import GossipKind, ReceivedGossip, seal_gossip
from prime_protocol.keys.chain import KeyChain
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic
from prime_runtime.keys import SequenceCounter
from prime_runtime.log_files import read_bounded

log = logging.getLogger(__name__)

SUFFIX, ACKNOWLEDGED_SUFFIX = ".accusation", ".acknowledged"
KEPT_MAX = 16
CLAIMS_MAX = 16
"""Accused entries that are remembered; the oldest claim is dropped."""
WAITING_MAX = 16
"""Accusations that wait for the log's keys; the oldest is dropped, and repeated by its sender."""
ACCUSERS_MAX = 64
"""Accusers counted for one claim."""


@dataclass(frozen=True, slots=True)
class KeptAccusation:
    """One that stops the work until it is acknowledged."""

    accuser: NodeId
    accusation: Accusation
    name: str
    """Of its file, without the suffix."""

    def is_acknowledged_in(self, folder: Path) -> bool:
        return (folder / (self.name + ACKNOWLEDGED_SUFFIX)).exists()

    def describe(self, *, is_own: bool, is_acknowledged: bool) -> dict[str, Any]:
        return {
            **describe_accusation(self.accusation),
            "accuser": str(self.accuser),
            "is_own": is_own,
            "is_acknowledged": is_acknowledged,
            "file": self.name + SUFFIX,
        }


@dataclass(slots=True)
class AccusationClaim:
    """What other nodes say about one entry, and this node cannot verify from the message alone."""

    accusation: Accusation
    accusers: set[NodeId] = field(default_factory=set)


def describe_accusation(accusation: Accusation) -> dict[str, Any]:
    return {
        "index": accusation.index,
        "rule": str(accusation.rule),
        "problem": accusation.problem,
        "leaf_hash": str(accusation.leaf_hash),
    }


def open_accusation(frame: bytes, network: NetworkId) -> tuple[NodeId, Accusation]:
    """Accuser and accusation of a kept envelope, which may have expired: its signature still holds."""
    payload = open_envelope(frame, network=network, version_min=0).payload
    if payload.kind != GossipKind.ACCUSATION:
        raise RemoteError("Payload.kind", f"is {payload.kind}, expected {GossipKind.ACCUSATION}")
    return payload.sender, decode(Accusation, payload.body)


def make_name(accuser: NodeId, accusation: Accusation) -> str:
    return f"entry-{accusation.index}-{accusation.rule}-{accusation.leaf_hash.hex()[:8]}-by-{accuser.hex()[:8]}"


def read_accusations(folder: Path, network: NetworkId) -> list[KeptAccusation]:
    """Those on disk that can be read, of whichever log."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}"))[:KEPT_MAX]:
        try:
            accuser, accusation = open_accusation(read_bounded(path, GOSSIP_FRAME_BYTES_MAX), network)
        except (LocalError, RemoteError) as error:
            log.warning("ignoring %s: %s", path, error)
            continue
        found.append(KeptAccusation(accuser, accusation, path.name.removesuffix(SUFFIX)))
    return found


def explain_hold(index: int, problem: str) -> str:
    return f"THE COORDINATOR BROKE A RULE: entry {index} of the log: {problem}. See: prime-node accusations"


class AccusationKeeper:
    """The accusations against one log. A supervised part of the daemon."""

    def __init__(
        self,
        folder: Path,
        key: WalletKey,
        *,
        network: NetworkId,
        run: RunId,
        request_keys: Callable[[], None],
        publish: Callable[[Accusation], Awaitable[object]],
        clock: Clock,
    ) -> None:
        self._folder = folder
        self._key = key
        self._network = network
        self._run = run
        self._request_keys = request_keys
        self._publish = publish
        self._clock = clock
        self._keys: KeyChain | None = None
        self._known_size = 0
        """The keys are all keys of so many entries."""
        self._waiting: deque[ReceivedGossip] = deque(maxlen=WAITING_MAX)
        """Accusations that convict unless the coordinator's key was rotated; judged when the keys are known."""
        self._kept: dict[str, KeptAccusation] = {}
        self._acknowledged: set[str] = set()
        self._claims: OrderedDict[tuple[int, Digest], AccusationClaim] = OrderedDict()
        self._unproven = ""
        """What this node's replay has found and cannot prove to others yet."""
        self.on_change: Callable[[str], None] = lambda reason: None
        """Called with why the node must not work; empty: it may. The daemon sets it."""

    @property
    def is_stopped(self) -> bool:
        """Whether the owner has to decide before the node works again."""
        return bool(self.hold_reason)

    @property
    def hold_reason(self) -> str:
        for kept in self._kept.values():
            if kept.name not in self._acknowledged:
                return explain_hold(kept.accusation.index, kept.accusation.problem)
        return self._unproven

    def set_keys(self, keys: KeyChain, known_size: int) -> None:
        """The log that this node follows: accusations count if they are about it. `keys` are all of `known_size`."""
        is_first, self._keys, self._known_size = self._keys is None, keys, known_size
        if is_first:
            self._load()
        waiting = list(self._waiting)
        self._waiting.clear()
        for gossip in waiting:
            self.add_received(gossip)

    def _load(self) -> None:
        for kept in read_accusations(self._folder, self._network):
            try:
                proof = self._judge(kept.accusation)
            except RemoteError:
                continue  # of a log that was replaced
            # One of another node is on disk because it convicted.
            if kept.accuser == self._key.node or proof is not AccusationProof.CLAIM:
                self._kept[kept.name] = kept
                if kept.is_acknowledged_in(self._folder):
                    self._acknowledged.add(kept.name)
        self.on_change(self.hold_reason)

    def add_finding(self, index: int, leaf_hash: Digest, problem: str) -> None:
        """What this node's replay has found. The work stops before the proof for others is complete."""
        if not self._is_kept(leaf_hash):
            self._unproven = explain_hold(index, problem)
            self.on_change(self.hold_reason)

    def add_own(self, accusation: Accusation) -> None:
        """A finding with its proof."""
        self._unproven = ""
        now_ms = self._clock.now_ms()
        frame = seal_gossip(
            self._key,
            accusation,
            network=self._network,
            run=self._run,
            sequence=SequenceCounter.shared().next(now_ms),
            now_ms=now_ms,
        )
        self._keep(self._key.node, accusation, frame)

    def add_received(self, gossip: ReceivedGossip) -> None:
        """What another node says; its envelope is valid."""
        accusation, accuser = gossip.message, gossip.payload.sender
        assert isinstance(accusation, Accusation)
        if self._keys is None:
            return  # it is repeated
        try:
            proof = self._judge(accusation)
        except RemoteError as error:
            log.info("ignoring an accusation of %s, which is not about this log: %s", accuser, error)
            return
        if proof is AccusationProof.CONVICTS:
            self._keep(accuser, accusation, gossip.frame)
            return
        self._add_claim(accuser, accusation)
        if proof is AccusationProof.UNKNOWN_AUTHOR:
            self._waiting.append(gossip)
            self._request_keys()

    def _judge(self, accusation: Accusation) -> AccusationProof:
        assert self._keys is not None
        return judge_accusation(accusation, self._keys, known_size=self._known_size)

    def _keep(self, accuser: NodeId, accusation: Accusation, frame: bytes) -> None:
        name = make_name(accuser, accusation)
        if self._is_kept(accusation.leaf_hash) or len(self._kept) >= KEPT_MAX:
            return
        log.error(
            "THE COORDINATOR BROKE A RULE, says %s: entry %d: %s; this node stops working. See: prime-node accusations",
            "this node" if accuser == self._key.node else accuser,
            accusation.index,
            accusation.problem,
        )
        write_atomic(self._folder / (name + SUFFIX), frame)
        self._kept[name] = KeptAccusation(accuser, accusation, name)
        self.on_change(self.hold_reason)

    def _is_kept(self, leaf_hash: Digest) -> bool:
        return any(kept.accusation.leaf_hash == leaf_hash for kept in self._kept.values())

    def _add_claim(self, accuser: NodeId, accusation: Accusation) -> None:
        key = (accusation.index, accusation.leaf_hash)
        claim = self._claims.setdefault(key, AccusationClaim(accusation))
        if accuser not in claim.accusers and len(claim.accusers) < ACCUSERS_MAX:
            claim.accusers.add(accuser)
            log.warning("%s claims that entry %d breaks a rule: %s", accuser, accusation.index, accusation.problem)
        while len(self._claims) > CLAIMS_MAX:
            self._claims.popitem(last=False)

    def acknowledge(self) -> str:
        """The owner has read them all, and lets the node work again."""
        names = [name for name in self._kept if name not in self._acknowledged]
        for name in names:
            write_atomic(self._folder / (name + ACKNOWLEDGED_SUFFIX), b"")
            self._acknowledged.add(name)
        count, self._unproven = len(names) + bool(self._unproven), ""
        self.on_change("")
        return f"{count} acknowledged; the node takes work again" if count else "there is nothing to acknowledge"

    async def run(self) -> None:
        """Repeats this node's own accusations, so that nodes that join later get them too. For ever."""
        while True:
            for kept in list(self._kept.values()):
                if kept.accuser == self._key.node:
                    await self._publish(kept.accusation)
            await self._clock.sleep_ms(GOSSIP_REPEAT_MS)

    # --- For the owner ----------------------------------------------------------------------------------------------

    def list_kept(self) -> list[dict[str, Any]]:
        return [
            kept.describe(is_own=kept.accuser == self._key.node, is_acknowledged=kept.name in self._acknowledged)
            for kept in self._kept.values()
        ]

    def list_claims(self, replayed_size: int | None) -> list[dict[str, Any]]:
        """With what this node's own replay says of each; None: it replays nothing."""
        return [
            {
                **describe_accusation(claim.accusation),
                "accusers": sorted(map(str, claim.accusers)),
                "answer": self._answer(claim.accusation, replayed_size),
            }
            for claim in self._claims.values()
        ]

    def _answer(self, accusation: Accusation, replayed_size: int | None) -> str:
        if self._is_kept(accusation.leaf_hash):
            return "confirmed"
        if accusation.rule is BrokenRule.CLOCK:
            return "unknown"
        return "refuted" if replayed_size is not None and replayed_size > accusation.index else "unknown"
