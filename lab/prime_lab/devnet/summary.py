"""The result of a devnet from its log and contracts: what each party did, and whether all promises hold. Pure.

The log is verified and replayed like any stranger's. The result is text for people and one line for scripts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_lab.devnet import recipe
from prime_lab.devnet.plan import DevnetRole
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.proofs.read_proofs import is_read_proof_refuted
from prime_protocol.wire.ids import DEFAULT_TICKER, Digest, NodeId, friendly_name
from prime_protocol.wire.typed_data import compute_receipt_id


@dataclass(slots=True)
class NodeSummary:
    """The work of one node."""

    produced: int = 0
    """Rollouts."""
    settled: Counter[Outcome] = field(default_factory=Counter)
    """Rollouts by outcome."""
    verdicts: int = 0
    inspected: int = 0
    """Verdicts whose read proofs an inspector compared."""
    refuted: int = 0
    """Those whose read proofs were invented."""


@dataclass(frozen=True, slots=True)
class ExecutedSlash:
    """A slash that was executed."""

    node: NodeId
    submission: Digest
    amount_nano: int
    reason: str
    appealed: bool


@dataclass(slots=True)
class LogSummary:
    """Everything that is counted."""

    deeds: dict[NodeId, NodeSummary] = field(default_factory=dict)
    makers: dict[Digest, NodeId] = field(default_factory=dict)
    """The node of each submission."""
    trained_on: set[Digest] = field(default_factory=set)
    manifests: list[Digest] = field(default_factory=list)
    """Of the checkpoints, in order."""
    slashed: list[ExecutedSlash] = field(default_factory=list)
    overturned: int = 0
    randomness: str = ""
    """Which chain draws come from, and who can predict it."""
    rounds: int = 0
    """Rounds of that chain in the log."""
    cosignatures: int = 0
    """Cosignatures of validators in them."""

    def trained_of(self, nodes: Iterable[NodeId]) -> int:
        """Submissions of these nodes that the model has learnt from."""
        wanted = set(nodes)
        return sum(self.makers[name] in wanted for name in self.trained_on)

    def slashed_of(self, nodes: Iterable[NodeId]) -> int:
        """How many of these nodes were slashed."""
        return len(set(nodes) & {each.node for each in self.slashed})


class LogSummarizer:
    """Reads a log from its first entry to its last."""

    def __init__(self, samples_per_slot: int) -> None:
        self.story = LogSummary()
        self._samples = samples_per_slot
        self._leases: dict[int, int] = {}
        self._rows: dict[Digest, int] = {}
        self._reasons: dict[Digest, str] = {}
        self._proposed: dict[Digest, int] = {}
        self._appealed: set[Digest] = set()
        self._read_proofs: dict[tuple[Digest, NodeId], bytes] = {}

    def read(self, leaf: bytes) -> None:
        _, payload = decode_leaf(leaf)
        self._take(payload.sender, decode_entry(payload))

    def _take(self, author: NodeId, entry: Any) -> None:
        story = self.story
        match entry:
            case e.NetworkCreated(randomness=chain):
                story.randomness = chain.describe()
            case e.RoundRecorded(cosignatures=cosignatures):
                story.rounds += 1
                story.cosignatures += len(cosignatures)
            case e.LeaseGranted(lease=lease, slots=slots):
                self._leases[lease] = slots
            case e.Submitted(receipt=receipt):
                name, rows = compute_receipt_id(receipt), self._leases[receipt.lease] * self._samples
                story.makers[name], self._rows[name] = author, rows
                story.deeds.setdefault(author, NodeSummary()).produced += rows
            case e.VerdictGiven(receipt=receipt, outcome=outcome, reason=reason, read_proof=read_proof):
                story.deeds.setdefault(author, NodeSummary()).verdicts += 1
                self._read_proofs[receipt.submission, author] = read_proof
                if outcome is Outcome.FRAUDULENT:
                    self._reasons.setdefault(receipt.submission, reason)
            case e.Inspected(submission=name, seen=seen):
                for each in seen:
                    deeds = story.deeds[each.reader]
                    deeds.inspected += 1
                    deeds.refuted += is_read_proof_refuted(self._read_proofs[name, each.reader], each.read_proof)
            case e.AcceptedUnaudited(submissions=names):
                for name in names:
                    self._settle(name, Outcome.ACCEPT)
            case e.Settled(settled=settled):
                for found in settled:
                    self._settle(found.submission, found.outcome)
            case e.SubmissionsListed(submissions=names):
                story.trained_on.update(names)
            case e.CheckpointPublished(manifest=manifest, trained_on=trained_on):
                story.manifests.append(manifest)
                story.trained_on.update(trained_on)
            case e.SlashProposed(submission=name, amount_nano=amount_nano):
                self._proposed[name] = amount_nano
            case e.Appealed(submission=name):
                self._appealed.add(name)
            case e.SlashOverturned():
                story.overturned += 1
            case e.SlashExecuted(submission=name):
                reason = self._reasons.get(name, "")
                is_appealed = name in self._appealed
                story.slashed.append(ExecutedSlash(story.makers[name], name, self._proposed[name], reason, is_appealed))

    def _settle(self, name: Digest, outcome: Outcome) -> None:
        self.story.deeds[self.story.makers[name]].settled[outcome] += self._rows[name]


def summarize_log(leaves: Iterable[bytes], samples_per_slot: int) -> LogSummary:
    reader = LogSummarizer(samples_per_slot)
    for leaf in leaves:
        reader.read(leaf)
    return reader.story


COIN_NANO = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class DevnetSummary:
    """The end of a devnet."""

    before: float
    after: float
    story: LogSummary
    names: dict[NodeId, str]
    steps: int
    seconds: float
    full_bytes: int
    delta_bytes: int
    learns: bool
    """Whether the recipe is the one that promises to learn."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """Connections over libp2p of each node that gossips."""
    grinding: str = ""
    """What came of a coordinator's try to rewrite this log until a draw suits it."""

    def nodes_of(self, part: DevnetRole) -> list[NodeId]:
        return [node for node, name in self.names.items() if name.startswith(part)]

    @property
    def honest(self) -> list[NodeId]:
        return [
            node for node, name in self.names.items() if not name.startswith((DevnetRole.CHEATER, DevnetRole.IDLER))
        ]

    def refuted(self, node: NodeId) -> int:
        return self.story.deeds.get(node, NodeSummary()).refuted

    @property
    def dishonest_trained(self) -> int:
        return self.story.trained_of(self.nodes_of(DevnetRole.CHEATER))

    @property
    def honest_slashed(self) -> int:
        return self.story.slashed_of(self.honest)

    @property
    def cheaters_slashed(self) -> int:
        return self.story.slashed_of(self.nodes_of(DevnetRole.CHEATER))


def list_failures(summary: DevnetSummary) -> Iterator[str]:
    """Every promised result that was not reached."""
    if summary.learns and summary.before >= recipe.REWARD_BEFORE_MAX:
        yield f"the reward began at {summary.before:.2f}, and should be below {recipe.REWARD_BEFORE_MAX}"
    if summary.learns and summary.after <= recipe.REWARD_AFTER_MIN:
        yield f"the reward ended at {summary.after:.2f}, and should be above {recipe.REWARD_AFTER_MIN}"
    if summary.dishonest_trained:
        yield f"the model has learnt from {summary.dishonest_trained} submissions of cheaters"
    if summary.honest_slashed:
        yield f"{summary.honest_slashed} honest nodes were slashed"
    cheaters = len(summary.nodes_of(DevnetRole.CHEATER))
    if summary.cheaters_slashed < cheaters:
        yield f"{summary.cheaters_slashed} of {cheaters} cheaters were slashed"
    if refuted := sum(map(summary.refuted, summary.honest)):
        yield f"{refuted} verdicts of honest validators were called unread"
    idlers = summary.nodes_of(DevnetRole.IDLER)
    if seen := [node for node in idlers if not summary.refuted(node)]:
        yield f"{len(seen)} of {len(idlers)} validators that did not read were not found out"
    if alone := [name for name, peers in summary.peers.items() if not peers]:
        yield f"no peer over libp2p: {', '.join(sorted(alone))}"
    if summary.grinding.endswith("NOT NOTICED"):
        yield summary.grinding


def describe_summary(summary: DevnetSummary) -> Iterator[str]:
    yield f"reward     {summary.before:.2f} -> {summary.after:.2f} on held-out problems, after {summary.steps} steps"
    for node, name in sorted(summary.names.items(), key=lambda pair: pair[1]):
        deeds = summary.story.deeds.get(node, NodeSummary())
        yield f"{name:<12}{friendly_name(node):<24}{describe_node(deeds)}"
    for each in summary.story.slashed:
        who, appeal = summary.names.get(each.node, str(each.node)), ", after an appeal" if each.appealed else ""
        amount = (
            f"{each.amount_nano / COIN_NANO:,.0f} {DEFAULT_TICKER}"
            if each.amount_nano
            else "nothing, as its stake was gone"
        )
        yield f"slashed    {who}: {amount}{appeal}, for: {each.reason}"
    if summary.full_bytes:
        share = summary.delta_bytes / summary.full_bytes
        yield f"weights    {summary.delta_bytes:,} bytes as deltas instead of {summary.full_bytes:,} ({share:.0%})"
    if summary.peers:
        counts = ", ".join(f"{name} {peers}" for name, peers in sorted(summary.peers.items()))
        yield f"peers      over libp2p: {counts}"
    story = summary.story
    yield f"randomness {story.rounds:,} rounds, {story.cosignatures:,} cosignatures of validators; {story.randomness}"
    if summary.grinding:
        yield f"grinder    {summary.grinding}"
    yield "log        replayed offline: every signature, rule, round and tile holds"


def describe_node(deeds: NodeSummary) -> str:
    if not deeds.produced:
        return describe_verdicts(deeds) if deeds.verdicts else "serves weights"
    counts = [f"{deeds.settled[outcome]:,} {word}" for outcome, word in OUTCOME_TEXTS.items() if deeds.settled[outcome]]
    return f"{deeds.produced:,} rollouts: {', '.join(counts) or 'none judged'}"


def describe_verdicts(deeds: NodeSummary) -> str:
    unread = f", {deeds.refuted} of them without reading" if deeds.refuted else ""
    return f"{deeds.verdicts} verdicts, {deeds.inspected} inspected{unread}"


OUTCOME_TEXTS = {
    Outcome.ACCEPT: "accepted",
    Outcome.INVALID: "not counted",
    Outcome.FRAUDULENT: "rejected as dishonest",
}


def format_result(summary: DevnetSummary) -> str:
    return (
        f"RESULT reward_before={summary.before:.3f} reward_after={summary.after:.3f}"
        f" dishonest_trained={summary.dishonest_trained} honest_slashed={summary.honest_slashed}"
        f" cheaters_slashed={summary.cheaters_slashed} log_verified=1 seconds={summary.seconds:.0f}"
    )


END_EVENTS = ("SlashExecuted", "SlashOverturned")
NamedEvent = tuple[str, Mapping[str, Any]]
"""An event: its name and its values."""


def count_open_slashes(told: list[NamedEvent]) -> int:
    """Slashes and penalties before the court that have not ended."""
    names = [name for name, _ in told]
    opened = names.count("SlashProposed") + names.count("PenaltyProposed")
    return opened - names.count("SlashExecuted") - names.count("SlashOverturned")


def list_missing_events(told: list[NamedEvent], *, cheaters: int) -> Iterator[str]:
    """What should have happened on the chain and did not."""
    names = [name for name, _ in told]
    penalties = {bytes(values["penalty"]) for name, values in told if name == "PenaltyProposed"}
    ended = [(name, bytes(values["submission"])) for name, values in told if name in END_EVENTS]
    ends = {submission: name for name, submission in ended if submission not in penalties}
    appealed = [bytes(values["submission"]) for name, values in told if name == "Appealed"]
    if count_open_slashes(told):
        yield f"{count_open_slashes(told)} slashes have not ended before the court"
    if cheaters and "SlashExecuted" not in [ends.get(submission) for submission in appealed]:
        yield "no cheater has appealed before the court and lost"
    if "SlashOverturned" not in ends.values():
        yield "no wrong slash was given back by the court"
    if "Promised" not in names:
        yield "no payout root is on the chain"


def describe_events(told: list[NamedEvent]) -> list[str]:
    """What the contracts saw, in the order of a network's life."""
    of: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for name, values in told:
        of[name].append(values)
    penalties = {bytes(values["penalty"]) for values in of["PenaltyProposed"]}
    for name in (*END_EVENTS, "Appealed"):
        of[f"penalty {name}"] = [values for values in of[name] if bytes(values["submission"]) in penalties]
        of[name] = [values for values in of[name] if bytes(values["submission"]) not in penalties]
    appealed = {bytes(values["submission"]) for values in of["Appealed"]}
    failed = [values for values in of["SlashExecuted"] if bytes(values["submission"]) in appealed]
    fined = sum(int(values["amount"]) for values in of["penalty SlashExecuted"]) // recipe.COIN_NANO
    staked = sum(int(values["amount"]) for values in of["Deposited"]) // recipe.COIN_NANO
    taken = sum(int(values["amount"]) for values in of["SlashExecuted"]) // recipe.COIN_NANO
    promised = max((int(values["total"]) for values in of["Promised"]), default=0) / recipe.COIN_NANO
    return [
        f"vault      {len(of['Deposited'])} deposits, {staked:,} {DEFAULT_TICKER} of stake",
        f"anchors    {len(of['Anchored'])} heads of the log, each proven to extend the one before",
        f"court      {len(of['SlashProposed'])} slashes proposed, {len(appealed)} appealed with a bond",
        f"court      {len(of['SlashExecuted'])} executed ({taken:,} {DEFAULT_TICKER}), {len(failed)} of them after an"
        f" appeal that failed; {len(of['SlashOverturned'])} given back",
        f"court      {len(penalties)} penalties of validators proposed, {len(of['penalty SlashExecuted'])} executed"
        f" ({fined:,} {DEFAULT_TICKER})",
        f"pool       {len(of['Promised'])} payout roots, {promised:,.2f} {DEFAULT_TICKER} promised in all",
    ]
