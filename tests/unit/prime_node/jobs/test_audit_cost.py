"""Rejecting a file never costs a validator more than accepting it, and its read proof covers what it has read.

Blocks are small here, so that a file of some dozen rows has many of them.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import pytest_asyncio

from prime_node.agent.events import AuditDone, AuditFailed, AuditFinding
from prime_node.jobs.evidence_bundle import decode_evidence
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.read_proofs import ReadCoverage, is_read_proof_refuted, split_blocks
from prime_protocol.rollouts.rollout import Rollout
from prime_protocol.wire.ids import NodeId
from support.audit_bench import Bench, make_bench
from support.job_setup import KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

BLOCK_TOKENS = 150
SIZES = (1, 3, 16)
"""Slots of the leases."""


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prime_protocol.proofs.read_proofs.READ_BLOCK_TOKENS", BLOCK_TOKENS)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def benches(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[int, Bench]]:
    found = {slots: await make_bench(tmp_path_factory.mktemp("scene"), slots) for slots in SIZES}
    yield found
    for bench in found.values():
        await bench.setup.engine.close()


def bend_logprobs(row: Rollout) -> Rollout:
    """A flaw in every chunk."""
    return replace(row, output_logprobs=row.output_logprobs / 2)


def bend_last_token(row: Rollout) -> Rollout:
    """A flaw at the last token of the row only."""
    logprobs = row.output_logprobs.copy()
    logprobs[-1] -= 5
    return replace(row, output_logprobs=logprobs)


def bend_slightly(row: Rollout) -> Rollout:
    """A little beyond a limit: it takes several rows to convict."""
    logprobs = row.output_logprobs.copy()
    logprobs[0] -= np.float32(0.06)
    return replace(row, output_logprobs=logprobs)


def lengths(bench: Bench) -> list[int]:
    return [len(row.prompt_tokens) + len(row.output_tokens) for row in bench.read().rows]


def blocks(bench: Bench) -> list[range]:
    return split_blocks(lengths(bench))


def read_metrics(finding: AuditFinding) -> dict[str, float]:
    return {metric.name: metric.value for metric in finding.metrics}


PLACES: dict[str, Callable[[int], range]] = {
    "first": lambda rows: range(1),
    "second half": lambda rows: range(rows // 2, rows),
    "last": lambda rows: range(rows - 1, rows),
    "every third": lambda rows: range(0, rows, 3),
    "all": range,
}


@pytest.mark.parametrize("bend", [bend_logprobs, bend_last_token])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("slots", SIZES)
async def test_a_rejection_never_costs_more_tokens_than_an_accept(
    benches: dict[int, Bench], slots: int, place: str, bend: Callable[[Rollout], Rollout]
) -> None:
    bench = benches[slots]
    total, longest = sum(lengths(bench)), max(lengths(bench))
    accept = await bench.find(bench.data)
    assert accept.outcome is Outcome.ACCEPT
    assert read_metrics(accept)["tokens_read"] == total + longest, "every row, and the longest again"
    forged = PLACES[place](len(lengths(bench)))
    finding = await bench.find(bench.forge(bend, forged))
    assert finding.outcome is Outcome.FRAUDULENT
    assert read_metrics(finding)["tokens_read"] <= read_metrics(accept)["tokens_read"]


async def test_many_small_flaws_that_convict_together_cost_no_more_either(benches: dict[int, Bench]) -> None:
    bench = benches[16]
    accept = await bench.find(bench.data)
    finding = await bench.find(bench.forge(bend_slightly, range(len(lengths(bench)))))
    assert finding.outcome is Outcome.FRAUDULENT
    assert read_metrics(finding)["tokens_read"] <= read_metrics(accept)["tokens_read"]


async def test_reading_stops_at_the_block_that_convicts_and_only_its_row_is_read_again(
    benches: dict[int, Bench],
) -> None:
    bench = benches[16]
    assert len(blocks(bench)) > 5
    for number, block in enumerate(blocks(bench)):
        finding = await bench.find(bench.forge(bend_logprobs, [block.start]))
        is_last = number == len(blocks(bench)) - 1
        assert finding.blocks_read == (0 if is_last else number + 1)
        expected = sum(lengths(bench)[: block.stop]) + lengths(bench)[block.start]
        assert read_metrics(finding)["tokens_read"] == expected
        evidence = decode_evidence(bench.setup.spool.get(finding.evidence) or b"")
        assert evidence.blocks_read == finding.blocks_read
        assert [row.row for row in evidence.numbers] == list(range(block.stop)), "the rows read are in the evidence"


async def test_files_that_fail_without_the_model_cost_no_tokens(benches: dict[int, Bench]) -> None:
    forged = benches[1].forge(lambda row: replace(row, prompt_tokens=row.prompt_tokens[::-1].copy()))
    assert "tokens_read" not in read_metrics(await benches[1].find(forged))


# --- Read proofs of what was read -----------------------------------------------------------------------------------


async def inspect(bench: Bench, data: bytes, *readers: ReadCoverage) -> list[bytes]:
    event = await bench.audit(data, readers=readers)
    assert isinstance(event, AuditDone), bench.auditor.problem
    return [event.finding.read_proofs[each.reader] for each in readers]


async def test_an_inspector_computes_the_proof_of_the_blocks_that_a_rejection_covers(
    benches: dict[int, Bench],
) -> None:
    bench = benches[16]
    for number in (0, 2, len(blocks(bench)) - 1):
        forged = bench.forge(bend_logprobs, [blocks(bench)[number].start])
        finding = await bench.find(forged)
        said = finding.read_proofs[KEY.node]
        (seen,) = await inspect(bench, forged, ReadCoverage(KEY.node, finding.blocks_read))
        assert not is_read_proof_refuted(said, seen)


async def test_a_rejection_that_covers_too_little_to_convict_is_refuted(benches: dict[int, Bench]) -> None:
    """A validator copies a rejection, reads one block, and says that this was enough."""
    bench = benches[16]
    other, forged = (bench.forge(bend_logprobs, [blocks(bench)[number].start]) for number in (0, 3))
    # Both files have the same tokens, so this is the true proof of the first block.
    (one_block,) = await inspect(bench, other, ReadCoverage(KEY.node, 1))
    task = bench.setup.task(other, bench.lease)
    event = await bench.audit(forged, submission=task.submission, readers=(ReadCoverage(KEY.node, 1),))
    assert isinstance(event, AuditDone)
    assert is_read_proof_refuted(one_block, event.finding.read_proofs[KEY.node])


async def test_readers_of_different_parts_are_inspected_in_one_reading(benches: dict[int, Bench]) -> None:
    bench = benches[16]
    forged = bench.forge(bend_logprobs, [0])
    (early,) = await inspect(bench, forged, ReadCoverage(KEY.node, 1))
    (late,) = await inspect(bench, forged, ReadCoverage(KEY.node, 4))
    (whole,) = await inspect(bench, forged, ReadCoverage(KEY.node, 0))
    other = ReadCoverage(NodeId(bytes(20)), 4)
    assert (await inspect(bench, forged, ReadCoverage(KEY.node, 1), other))[0] == early
    assert is_read_proof_refuted(early, late)
    assert is_read_proof_refuted(early, whole)
    assert is_read_proof_refuted(late, whole)


# --- Rows beyond the context ----------------------------------------------------------------------------------------


async def test_a_row_beyond_the_models_context_is_fraud_and_no_failure(benches: dict[int, Bench]) -> None:
    """Of terms that allow it: they name no context, and the model's is shorter than a prompt and an output."""
    bench = benches[1]
    context = bench.setup.context
    short = len(bench.read().rows[0].prompt_tokens) + 1
    bench.setup.context = replace(context, model=replace(context.model, context_max=short))
    try:
        finding = await bench.find(bench.data)
    finally:
        bench.setup.context = context
    assert finding.outcome is Outcome.FRAUDULENT
    assert f"the model's context is {short}" in finding.reason


async def test_an_engine_that_is_too_small_for_the_run_judges_no_file_at_all(benches: dict[int, Bench]) -> None:
    """Else it would accept files with short rows, and never reject those with long ones."""
    bench = benches[1]
    context = bench.setup.context
    long = replace(context.terms, prompt_tokens_max=2**15)
    bench.setup.context = replace(context, terms=long, model=replace(context.model, context_max=2**16))
    try:
        event = await bench.audit(bench.data)
    finally:
        bench.setup.context = context
    assert isinstance(event, AuditFailed)
    assert "a row of this run may have 32808 tokens, the engine's limit is 2048" in bench.auditor.problem
