"""A study as Markdown tables and ROC curves (SVG), for docs/verification. Pure."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from statistics import median

from prime_lab.attacks.attack import Attack, Attacker, AttackVerdict
from prime_lab.attacks.catalog import (
    ALL_ATTACKS,
)
from prime_lab.attacks.detection import COMMON_SLOTS, DetectionRate, PassedChunks, Points, compute_area, compute_roc
from prime_lab.attacks.economics import compute_gain_nano, compute_verdict_gain
from prime_lab.attacks.harness import make_terms
from prime_lab.attacks.study import NEAR_HONEST, HonestCount, Study
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.tolerance import Tolerance

WIDTH, HEIGHT, EDGE = 460, 320, 48
LEAST = 1e-3
"""Left edge of the logarithmic scale; smaller values are drawn there."""
COLOURS = ("#0b5fa5", "#b3261e", "#2e7d32", "#8a5a00", "#6a3fa0", "#00707a")

Curve = tuple[str, Sequence[tuple[float, float]]]


def to_pixels(wrong: float, right: float) -> tuple[float, float]:
    across = 1 - math.log10(max(wrong, LEAST)) / math.log10(LEAST)
    return EDGE + across * (WIDTH - 2 * EDGE), HEIGHT - EDGE - right * (HEIGHT - 2 * EDGE)


def draw_roc(title: str, curves: Sequence[Curve]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + 18 * len(curves)}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="13">{escape(title)}</text>',
        *draw_axes(),
    ]
    for number, (name, points) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (to_pixels(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        y = HEIGHT + 18 * number
        parts.append(
            f'<line x1="{EDGE}" y1="{y - 4}" x2="{EDGE + 18}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{EDGE + 24}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def draw_axes() -> list[str]:
    lines = []
    for power in range(round(math.log10(LEAST)), 1):
        x, bottom = to_pixels(10.0**power, 0.0)
        _, top = to_pixels(10.0**power, 1.0)
        lines.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{top}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{10.0**power:g}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = to_pixels(LEAST, share)
        lines.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - EDGE}" y2="{y:.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    middle = WIDTH / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">honest submissions rejected</text>')
    lines.append(
        f'<text x="12" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 12 {HEIGHT / 2})">'
        "dishonest submissions rejected</text>"
    )
    return lines


ORIGINAL = ("original 38/10/8", "original 60/40/40")
SURE = ("at least", f"in {COMMON_SLOTS} slots")
DEFAULTS = "ours, default bounds"
DETECTION = 0.999
"""Least detection rate of audited submissions."""
WRONG_SHARE = 0.05
"""Overturned verdicts of a validator that does not read, if one file in twenty is dishonest."""
REFUSED = ("**refused**", "refused by 38/10/8", "by 60/40/40")


def list_study(study: Study) -> Iterator[str]:
    yield f"### {study.subject.name}"
    yield ""
    yield from list_honest(study.honest)
    yield ""
    yield from list_rates(study.rates)
    yield ""
    yield "Bounds: " + ", ".join(f"`{name}` {value:g}" for name, value in list_bounds(study.tolerance)) + "."
    yield ""


def list_bounds(tolerance: Tolerance) -> Iterator[tuple[str, float]]:
    for name in Tolerance.__slots__:
        if name != "precision":
            yield name, getattr(tolerance, name)


def list_honest(honest: HonestCount) -> Iterator[str]:
    yield make_table_head(
        "honest", "submissions", "completions", "chunks", "unusual", "beyond a limit", "largest evidence", *REFUSED
    )
    share = honest.unusual / max(1, honest.chunks)
    yield (
        f"| | {honest.submissions:,} | {honest.rows:,} | {honest.chunks:,} | {share:.3%} | {honest.beyond} | "
        f"{honest.evidence_max:.1f} of 12 | **{honest.refused}** | {honest.paper} | {honest.deployed} |"
    )


def list_rates(rates: Sequence[DetectionRate]) -> Iterator[str]:
    yield make_table_head(
        "attack", "caught", *SURE, "tokens in one", "needed: half, most", "named by", DEFAULTS, *ORIGINAL
    )
    for each in rates:
        needed = f"{median(each.needed):.0f}, {max(each.needed)}" if each.needed else "-"
        caught = f"{each.caught} of {each.submissions}"
        yield (
            f"| {each.attack} | {caught} | {format_percent(each.sure())} | {format_percent(each.sure(COMMON_SLOTS))} | "
            f"{each.tokens} | {needed} | {', '.join(each.checks[:2]) or '-'} | {format_share(each.defaults, each)} | "
            f"{format_share(each.paper, each)} | {format_share(each.deployed, each)} |"
        )


def make_table_head(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def format_percent(share: float) -> str:
    """Rounded down, so that it never reads 100 % by rounding."""
    return "> 99.999 %" if share > 0.99999 else f"{int(share * 1e5) / 1e3:.3f} %"


def format_share(count: int, each: DetectionRate) -> str:
    return f"{count / max(1, each.submissions):.1%}"


def make_forgery_head() -> str:
    return make_table_head("model", "forgery", "chunks", *ORIGINAL, DEFAULTS, "ours, any noise allowed")


def list_forgeries(name: str, passed: Sequence[PassedChunks]) -> Iterator[str]:
    for each in passed:
        yield (
            f"| {name} | {each.forgery} | {each.chunks} | {each.paper / each.chunks:.1%} | "
            f"{each.deployed / each.chunks:.1%} | {each.defaults / each.chunks:.1%} | {each.loose / each.chunks:.1%} |"
        )


def draw_study(study: Study) -> str:
    """ROC curves of our rule and of the original's, for attacks close to honest work."""
    curves: list[tuple[str, Points]] = []
    for name in NEAR_HONEST:
        if name in study.scores:
            for column, rule in ((0, "ours"), (1, "original, any thresholds in the ratio 38/10/8")):
                points = compute_roc([s[column] for s in study.honest.scores], [s[column] for s in study.scores[name]])
                curves.append((f"{name}, {rule}: area {compute_area(points):.4f}", points))
    return draw_roc(f"{study.subject.name}: one submission", curves)


def list_catalog() -> Iterator[str]:
    """A table of every attack: attacker, action, expected result, checks, savings and expected gain."""
    terms = make_terms(vocabulary=64, model="m", tokens_max=1024, prompt_tokens_max=64, tolerance=Tolerance())
    yield make_table_head(
        "attack", "by", "what it does", "comes to", "named by", "spares or brings", "worth: 1 slot, a step"
    )
    for attack in ALL_ATTACKS:
        spares = [f"{attack.saves:.0%} of the work"] if attack.saves else []
        brings = "; ".join([*spares, *([attack.gains] if attack.gains else [])]) or "nothing"
        named = ", ".join(f"`{check}`" for check in attack.caught_by[:3]) or "nothing"
        yield (
            f"| {attack.name} | {attack.party} | {attack.does} | {attack.verdict} | {named} | {brings} | "
            f"{format_gain(attack, terms)} |"
        )


def format_gain(attack: Attack, terms: RunTerms) -> str:
    """Of a worker in coins, for one slot and for a step; of a validator as a share of a verdict's pay."""
    if attack.party is Attacker.WORKER and attack.verdict is not AttackVerdict.HARMLESS:
        gains = [
            compute_gain_nano(attack, terms, slots=n, detection=DETECTION) / 1e9 for n in (1, terms.slots_per_step)
        ]
        return ", ".join(f"{gain:.2f}" for gain in gains)
    if attack.party is Attacker.VALIDATOR and attack.saves:
        return f"{compute_verdict_gain(saves=attack.saves, wrong=WRONG_SHARE):+.2f} of a verdict's pay"
    return "-"
