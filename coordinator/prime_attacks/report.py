"""A study as Markdown, for docs/verification.md. Pure."""

from collections.abc import Iterator, Sequence
from statistics import median

from prime_attacks.chances import Points, area, roc
from prime_attacks.detection import COMMON_SLOTS, Rate
from prime_attacks.economics import gain_nano, verdict_gain
from prime_attacks.forgery_study import Passed
from prime_attacks.gallery import ALL, Attack, Party, Verdict
from prime_attacks.plots import draw_roc
from prime_attacks.scene import make_terms
from prime_attacks.study import NEAR, HonestCount, Study
from prime_protocol.terms import RunTerms
from prime_protocol.tolerance import Tolerance

ORIGINAL = ("original 38/10/8", "original 60/40/40")
SURE = ("at least", f"in {COMMON_SLOTS} slots")
DEFAULTS = "ours, default bounds"
DETECTION = 0.999
"""Of what is drawn, at the least."""
WRONG_SHARE = 0.05
"""Of the verdicts of a validator that does not look: where one file in twenty is dishonest."""
REFUSED = ("**refused**", "refused by 38/10/8", "by 60/40/40")


def list_study(study: Study) -> Iterator[str]:
    yield f"### {study.subject.name}"
    yield ""
    yield from list_honest(study.honest)
    yield ""
    yield from list_rates(study.rates)
    yield ""
    yield "Bounds: " + ", ".join(f"`{name}` {value:g}" for name, value in bounds(study.tolerance)) + "."
    yield ""


def bounds(tolerance: Tolerance) -> Iterator[tuple[str, float]]:
    for name in Tolerance.__slots__:
        if name != "precision":
            yield name, getattr(tolerance, name)


def list_honest(honest: HonestCount) -> Iterator[str]:
    yield head(
        "honest", "submissions", "completions", "chunks", "unusual", "beyond a limit", "largest evidence", *REFUSED
    )
    share = honest.unusual / max(1, honest.chunks)
    yield (
        f"| | {honest.submissions:,} | {honest.rows:,} | {honest.chunks:,} | {share:.3%} | {honest.beyond} | "
        f"{honest.evidence_max:.1f} of 12 | **{honest.refused}** | {honest.paper} | {honest.deployed} |"
    )


def list_rates(rates: Sequence[Rate]) -> Iterator[str]:
    yield head("attack", "caught", *SURE, "tokens in one", "needed: half, most", "named by", DEFAULTS, *ORIGINAL)
    for each in rates:
        needed = f"{median(each.needed):.0f}, {max(each.needed)}" if each.needed else "-"
        caught = f"{each.caught} of {each.submissions}"
        yield (
            f"| {each.attack} | {caught} | {percent(each.sure())} | {percent(each.sure(COMMON_SLOTS))} | "
            f"{each.tokens} | {needed} | {', '.join(each.checks[:2]) or '-'} | {share_of(each.defaults, each)} | "
            f"{share_of(each.paper, each)} | {share_of(each.deployed, each)} |"
        )


def head(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def percent(share: float) -> str:
    """Never rounded up to all."""
    return "> 99.999 %" if share > 0.99999 else f"{int(share * 1e5) / 1e3:.3f} %"


def share_of(count: int, each: Rate) -> str:
    return f"{count / max(1, each.submissions):.1%}"


def head_forgeries() -> str:
    return head("model", "forgery", "chunks", *ORIGINAL, DEFAULTS, "ours, any noise allowed")


def list_forgeries(name: str, passed: Sequence[Passed]) -> Iterator[str]:
    for each in passed:
        yield (
            f"| {name} | {each.forgery} | {each.chunks} | {each.paper / each.chunks:.1%} | "
            f"{each.deployed / each.chunks:.1%} | {each.defaults / each.chunks:.1%} | {each.loose / each.chunks:.1%} |"
        )


def draw(study: Study) -> str:
    """Ours in full colour order, then the original's rule for the same attacks."""
    curves: list[tuple[str, Points]] = []
    for name in NEAR:
        if name in study.scores:
            for column, rule in ((0, "ours"), (1, "original, any thresholds in the ratio 38/10/8")):
                points = roc([s[column] for s in study.honest.scores], [s[column] for s in study.scores[name]])
                curves.append((f"{name}, {rule}: area {area(points):.4f}", points))
    return draw_roc(f"{study.subject.name}: one submission", curves)


def list_gallery() -> Iterator[str]:
    """Every attack: who, what, what it must come to, what names it, what it would bring, what it is worth."""
    terms = make_terms(vocabulary=64, model="m", tokens_max=1024, prompt_tokens_max=64, tolerance=Tolerance())
    yield head("attack", "by", "what it does", "comes to", "named by", "spares or brings", "worth: 1 slot, a step")
    for attack in ALL:
        spares = [f"{attack.saves:.0%} of the work"] if attack.saves else []
        brings = "; ".join([*spares, *([attack.gains] if attack.gains else [])]) or "nothing"
        named = ", ".join(f"`{check}`" for check in attack.caught_by[:3]) or "nothing"
        yield (
            f"| {attack.name} | {attack.party} | {attack.does} | {attack.verdict} | {named} | {brings} | "
            f"{tell_worth(attack, terms)} |"
        )


def tell_worth(attack: Attack, terms: RunTerms) -> str:
    """Of a worker in tokens, for one slot and for a step; of a validator as a part of a verdict's pay."""
    if attack.party is Party.WORKER and attack.verdict is not Verdict.HARMLESS:
        gains = [gain_nano(attack, terms, slots=n, detection=DETECTION) / 1e9 for n in (1, terms.slots_per_step)]
        return ", ".join(f"{gain:.2f}" for gain in gains)
    if attack.party is Party.VALIDATOR and attack.saves:
        return f"{verdict_gain(saves=attack.saves, wrong=WRONG_SHARE):+.2f} of a verdict's pay"
    return "-"
