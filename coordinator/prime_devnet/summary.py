"""What came of a devnet, in words and in one line for scripts; and whether it kept what it promises. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from prime_devnet import recipe
from prime_devnet.outcome import Deeds, Story
from prime_devnet.plan import Part
from prime_protocol.entries import Outcome
from prime_protocol.ids import NodeId
from prime_protocol.names import friendly_name

NANO = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The end of a devnet."""

    before: float
    after: float
    story: Story
    names: dict[NodeId, str]
    steps: int
    seconds: float
    full_bytes: int
    delta_bytes: int
    learns: bool
    """Whether the recipe is the one that promises to learn."""

    def nodes_of(self, part: Part) -> list[NodeId]:
        return [node for node, name in self.names.items() if name.startswith(part)]

    @property
    def honest(self) -> list[NodeId]:
        return [node for node, name in self.names.items() if not name.startswith((Part.CHEATER, Part.IDLER))]

    def refuted(self, node: NodeId) -> int:
        return self.story.deeds.get(node, Deeds()).refuted

    @property
    def dishonest_trained(self) -> int:
        return self.story.trained_of(self.nodes_of(Part.CHEATER))

    @property
    def honest_slashed(self) -> int:
        return self.story.slashed_of(self.honest)

    @property
    def cheaters_slashed(self) -> int:
        return self.story.slashed_of(self.nodes_of(Part.CHEATER))


def list_failures(summary: Summary) -> Iterator[str]:
    """Everything that is not as promised."""
    if summary.learns and summary.before >= recipe.REWARD_BEFORE_MAX:
        yield f"the reward began at {summary.before:.2f}, and should be below {recipe.REWARD_BEFORE_MAX}"
    if summary.learns and summary.after <= recipe.REWARD_AFTER_MIN:
        yield f"the reward ended at {summary.after:.2f}, and should be above {recipe.REWARD_AFTER_MIN}"
    if summary.dishonest_trained:
        yield f"the model has learnt from {summary.dishonest_trained} submissions of cheaters"
    if summary.honest_slashed:
        yield f"{summary.honest_slashed} honest nodes were slashed"
    cheaters = len(summary.nodes_of(Part.CHEATER))
    if summary.cheaters_slashed < cheaters:
        yield f"{summary.cheaters_slashed} of {cheaters} cheaters were slashed"
    if refuted := sum(map(summary.refuted, summary.honest)):
        yield f"{refuted} verdicts of honest validators were called unread"
    idlers = summary.nodes_of(Part.IDLER)
    if seen := [node for node in idlers if not summary.refuted(node)]:
        yield f"{len(seen)} of {len(idlers)} validators that did not read were not found out"


def describe(summary: Summary) -> Iterator[str]:
    yield f"reward     {summary.before:.2f} -> {summary.after:.2f} on held-out problems, after {summary.steps} steps"
    for node, name in sorted(summary.names.items(), key=lambda pair: pair[1]):
        deeds = summary.story.deeds.get(node, Deeds())
        yield f"{name:<12}{friendly_name(node):<24}{describe_deeds(deeds)}"
    for each in summary.story.slashed:
        who, appeal = summary.names.get(each.node, str(each.node)), ", after an appeal" if each.appealed else ""
        amount = f"{each.amount_nano / NANO:,.0f} tokens" if each.amount_nano else "nothing, as its stake was gone"
        yield f"slashed    {who}: {amount}{appeal}, for: {each.reason}"
    if summary.full_bytes:
        share = summary.delta_bytes / summary.full_bytes
        yield f"weights    {summary.delta_bytes:,} bytes as deltas instead of {summary.full_bytes:,} ({share:.0%})"
    yield "log        replayed offline: every signature, rule and tile holds"


def describe_deeds(deeds: Deeds) -> str:
    if not deeds.produced:
        return describe_verdicts(deeds) if deeds.verdicts else "serves weights"
    counts = [f"{deeds.settled[outcome]:,} {word}" for outcome, word in WORDS.items() if deeds.settled[outcome]]
    return f"{deeds.produced:,} rollouts: {', '.join(counts) or 'none judged'}"


def describe_verdicts(deeds: Deeds) -> str:
    unread = f", {deeds.refuted} of them without reading" if deeds.refuted else ""
    return f"{deeds.verdicts} verdicts, {deeds.inspected} inspected{unread}"


WORDS = {Outcome.ACCEPT: "accepted", Outcome.SOFT: "not counted", Outcome.HARD: "rejected as dishonest"}


def result_line(summary: Summary) -> str:
    return (
        f"RESULT reward_before={summary.before:.3f} reward_after={summary.after:.3f}"
        f" dishonest_trained={summary.dishonest_trained} honest_slashed={summary.honest_slashed}"
        f" cheaters_slashed={summary.cheaters_slashed} log_verified=1 seconds={summary.seconds:.0f}"
    )
