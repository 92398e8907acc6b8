"""What a selftest measures, as values, and the table of it for people. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prime_node.engine.measurement import RowMeasurement
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Precision, Tolerance

REPORT_VERSION = 1
COLUMNS = ("check", "result", "figures")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What the probe of one engine is given."""

    engine: str
    """`torch` or `vllm`."""
    device: str
    precision: str
    threads: int
    checkpoint: str
    sequences: int
    """Generated at once, to measure the speed."""
    tokens: int
    """Of each of them."""
    vocabulary: int
    """Of the logits that kernels are tried on."""
    rows: int
    """Of those logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairReport:
    """What one engine found in the completions of another, or of its own."""

    writer: str
    reader: str
    tokens: int
    chunks: int
    exponent_mismatches_mean: float
    exponent_mismatches_max: int
    mantissa_error_mean: float
    mantissa_error_mean_max: float
    losers: float
    """Share of the tokens that are not the replayed winner."""
    margin_max: float
    logprob_error_mean: float
    logprob_error_max: float
    evidence: int
    """Tenths of a decade, under the default tolerance of that precision."""
    problem: str
    """Why a validator would reject it; empty if it accepts."""


def summarize_pair(writer: str, reader: str, rows: Sequence[RowMeasurement], precision: Precision) -> PairReport:
    """All rows were read and have proofs, or `problem` says so."""
    weighed, flaws = weigh_rows(rows, Tolerance(precision=precision))
    reports = [report for row in rows for report in row.chunks]
    tokens = sum(row.tokens for row in rows)
    problem = flaws[0].text if flaws else next((row.proof_problem for row in rows if row.proof_problem), "")
    return PairReport(
        writer=writer,
        reader=reader,
        tokens=tokens,
        chunks=len(reports),
        exponent_mismatches_mean=sum(report.exponent_mismatches for report in reports) / max(1, len(reports)),
        exponent_mismatches_max=max((report.exponent_mismatches for report in reports), default=0),
        mantissa_error_mean=sum(report.mantissa_error_mean for report in reports) / max(1, len(reports)),
        mantissa_error_mean_max=max((report.mantissa_error_mean for report in reports), default=0.0),
        losers=sum(span.losers for row in rows for span in row.spans) / tokens,
        margin_max=max(row.margin_max for row in rows),
        logprob_error_mean=sum(row.logprob_error_sum for row in rows) / tokens,
        logprob_error_max=max(row.logprob_error_max for row in rows),
        evidence=weighed.evidence,
        problem=problem,
    )


def list_lines(report: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Rows of the table, under COLUMNS."""
    for name, found in report["engines"].items():
        yield from list_engine_lines(name, found)
    for name, reason in report["left_out"].items():
        yield name, "left out", reason
    for pair in report["pairs"]:
        figures = (
            f"exponents {pair['exponent_mismatches_mean']:.2f}, at most {pair['exponent_mismatches_max']}; mantissas "
            f"{pair['mantissa_error_mean']:.2f}; losers {pair['losers']:.2%}; margin at most {pair['margin_max']:.2g}; "
            f"log-probs {pair['logprob_error_mean']:.2g}, at most {pair['logprob_error_max']:.2g}"
        )
        result = f"rejects: {pair['problem']}" if pair["problem"] else "accepts"
        yield f"{pair['writer']} → {pair['reader']}", result, f"{pair['tokens']} tokens, {figures}"


def list_engine_lines(name: str, found: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    if "problem" in found:
        yield name, "does not run", found["problem"]
        return
    kernels = found["kernels"]
    if "problem" in kernels:
        yield f"{name}: sampling kernels", "failed", kernels["problem"]
    else:
        wrong = [case["name"] for case in kernels["cases"] if not case["winners"]]
        text = "as numpy" if kernels["ok"] else f"differ from numpy: {', '.join(wrong) or 'margins'}"
        slowest = max(case["row_us"] for case in kernels["cases"])
        yield f"{name}: sampling kernels", text, f"{kernels['sampler']}, at most {slowest:.0f} µs a row"
    near = found["transformers"]
    if "problem" in near:
        yield f"{name}: transformers", "failed", near["problem"]
    else:
        figures = f"log-probs differ by {near['logprob_error_mean']:.2g}, at most {near['logprob_error_max']:.2g}"
        yield f"{name}: transformers", f"{near['losers']:.2%} of {near['tokens']} tokens differ", figures
    speeds = [found["tokens_per_s"], found["tokens_per_s_without_proofs"]]
    texts = [f"{each:,.0f}" if isinstance(each, float) else f"failed: {each['problem']}" for each in speeds]
    # vLLM cannot be asked to leave out the proofs alone.
    other = "vLLM's own greedy sampler, without proofs" if name.startswith("vllm") else "without proofs"
    yield f"{name}: tokens/s", texts[0], f"{other}: {texts[1]}"


def find_problems(report: dict[str, Any]) -> list[str]:
    """What is wrong on this machine; empty if nothing is."""
    found = [f"{pair['writer']} → {pair['reader']}: {pair['problem']}" for pair in report["pairs"] if pair["problem"]]
    for name, engine in report["engines"].items():
        if "problem" in engine:
            found.append(f"{name}: {engine['problem']}")
            continue
        for part in ("kernels", "transformers", "tokens_per_s", "tokens_per_s_without_proofs"):
            if isinstance(engine[part], dict) and "problem" in engine[part]:
                found.append(f"{name}, {part}: {engine[part]['problem']}")
        if engine["kernels"].get("ok") is False:
            found.append(f"{name}: the sampling kernels differ from numpy")
    return found
