"""A validator's audit, with a real engine process: what it finds, what it keeps, and when it says nothing."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import sha256

import pytest
import pytest_asyncio

from prime_node.agent.events import AuditDone, AuditFailed
from prime_node.engine.config import EngineConfig
from prime_node.jobs.evidence_bundle import (
    EvidenceBundle,
    decode_evidence,
    digest_metrics,
    verify_evidence_signature,
)
from prime_node.jobs.examination import compare_metrics, compute_checkpoint_root, replay_audit
from prime_node.jobs.file_checks import Judgement
from prime_protocol.constants import READ_PROOF_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.read_proofs import ReadCoverage, is_read_proof_refuted
from prime_protocol.rollouts.rollout import FinishReason, Rollout
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, sign_document
from prime_runtime.clock import SystemClock
from prime_trainer.model.tiny import make_tokenizer
from support.audit_bench import Bench, make_bench
from support.job_setup import KEY, JobSetup, digest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    bench = await make_bench(tmp_path_factory.mktemp("scene"))
    yield bench
    await bench.setup.engine.close()


def swap_token(row: Rollout) -> Rollout:
    tokens = row.output_tokens.copy()
    tokens[0] = (tokens[0] + 1) % 10
    return replace(row, output_tokens=tokens)


def cut_short(row: Rollout) -> Rollout:
    kept = max(1, len(row.output_tokens) - 1)
    return replace(
        row,
        finish=FinishReason.LENGTH,
        output_tokens=row.output_tokens[:kept],
        output_logprobs=row.output_logprobs[:kept],
        proofs=row.proofs[: 258 * -(-kept // 32)],
    )


FORGERIES: dict[str, Callable[[Rollout], Rollout]] = {
    "another token": swap_token,
    "cut short": cut_short,
    "log-probs of another temperature": lambda row: replace(row, output_logprobs=row.output_logprobs / 2),
    "proofs of something else": lambda row: replace(row, proofs=bytes([0x90, 0]) * (len(row.proofs) // 2)),
    "proofs that are none": lambda row: replace(row, proofs=bytes(len(row.proofs))),
    "another prompt": lambda row: replace(row, prompt_tokens=row.prompt_tokens[::-1].copy()),
}


async def test_honest_work_is_accepted_with_its_numbers(bench: Bench) -> None:
    finding = await bench.find(bench.data)
    assert (finding.outcome, finding.reason, finding.has_bundle) == (Outcome.ACCEPT, "", False)
    assert finding.evidence == digest_metrics(finding.metrics)
    metrics = {metric.name: metric.value for metric in finding.metrics}
    assert metrics["margin_max"] == 0.0
    assert 0 <= metrics["reward_mean"] <= 1
    assert bench.auditor.counts == {"accept": 1}


async def test_what_breaks_here_is_no_verdict(bench: Bench) -> None:
    assert isinstance(await bench.audit(None), AuditFailed)
    assert "the coordinator has no /objects/" in bench.auditor.problem
    assert isinstance(await bench.audit(bench.data, file_digest=digest("other")), AuditFailed)
    assert "has another digest than its name says" in bench.auditor.problem
    assert isinstance(await bench.audit(bench.data, deadline_ms=0), AuditFailed)
    assert "not finished in time" in bench.auditor.problem
    await bench.setup.engine.close()
    bench.setup.behave("die")
    assert isinstance(await bench.audit(bench.data), AuditFailed)
    assert "exit code 7" in bench.auditor.problem
    (bench.setup.checkpoint / "behaviour").unlink()
    assert not list((bench.setup.folder / "files").iterdir()), "and nothing is kept of it"


async def test_a_tokenizer_that_panics_on_an_answer_is_no_verdict(bench: Bench) -> None:
    honest = bench.setup.context
    hostile = make_tokenizer(64) | {"decoder": {"type": "Strip", "content": "1", "start": 9, "stop": 9}}
    model = replace(honest.model, tokenizer_json=json.dumps(hostile).encode())
    bench.setup.context = replace(honest, model=model)
    try:
        assert isinstance(await bench.audit(bench.data), AuditFailed)
        assert "PanicException" in bench.auditor.problem
    finally:
        bench.setup.context = honest
    assert (await bench.find(bench.data)).outcome is Outcome.ACCEPT


async def test_a_file_that_finds_a_bug_of_ours_is_no_verdict_and_the_node_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*given: object) -> None:
        raise IndexError("row 7")

    with monkeypatch.context() as patch:
        patch.setattr("prime_protocol.rollouts.verify.read_rollouts", stumble)
        assert isinstance(await bench.audit(bench.data), AuditFailed)
    assert bench.auditor.problem == "a bug in this program: IndexError('row 7')"
    assert (await bench.find(bench.data)).outcome is Outcome.ACCEPT


async def test_weights_that_went_bad_in_this_machine_are_no_verdict(bench: Bench) -> None:
    model, engine = bench.setup.checkpoint / "model.safetensors", bench.setup.engine
    good = model.read_bytes()
    middle = len(good) // 2
    model.write_bytes(good[:middle] + bytes(byte ^ 0x40 for byte in good[middle : middle + 64]) + good[middle + 64 :])
    await engine.invalidate_weights()
    context = bench.setup.context
    async with engine.acquire(context.root, context.folder, context.terms.tolerance.precision):
        model.write_bytes(good)
    assert isinstance(await bench.audit(bench.data), AuditFailed)
    assert "0.0 at the second: this machine's memory or engine is faulty" in bench.auditor.problem
    assert (await bench.find(bench.data)).outcome is Outcome.ACCEPT, "what it holds now was loaded anew"


async def test_nothing_is_rejected_with_weights_that_are_damaged_on_disk(bench: Bench) -> None:
    bench.setup.damage = "the checkpoint is damaged"
    try:
        assert isinstance(await bench.audit(bench.forge(swap_token)), AuditFailed)
    finally:
        bench.setup.damage = ""
    assert bench.auditor.problem == "the checkpoint is damaged"


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forgery_is_hard_and_its_evidence_says_where(bench: Bench, name: str) -> None:
    forged = bench.forge(FORGERIES[name])
    finding = await bench.find(forged)
    assert finding.outcome is Outcome.FRAUDULENT
    assert "row 1" in finding.reason
    assert finding.has_bundle
    bundle = bench.setup.spool.get(finding.evidence)
    assert bundle is not None
    evidence = decode_evidence(bundle)
    assert (evidence.file, evidence.reason, evidence.metrics) == (forged, finding.reason, finding.metrics)
    assert verify_evidence_signature(evidence, EMBEDDED_DOMAIN)
    assert evidence.flaws[0].row == 1


async def test_a_file_that_is_not_in_order_is_soft(bench: Bench) -> None:
    finding = await bench.find(bench.data[:-9] + b"x" + bench.data[-8:])
    assert finding.outcome is Outcome.INVALID
    assert "the file is not in order: footer" in finding.reason


async def test_a_receipt_of_another_submission_stays_out_of_the_evidence(bench: Bench) -> None:
    forged = bench.forge(FORGERIES["another token"])
    other = bench.setup.receipt(b"another file", bench.lease)
    bench.signed = other, sign_document(KEY, other, EMBEDDED_DOMAIN)
    bundle = bench.setup.spool.get((await bench.find(forged, is_signed=False)).evidence)
    assert bundle is not None
    evidence = decode_evidence(bundle)
    assert evidence.receipt is None
    assert not verify_evidence_signature(evidence, EMBEDDED_DOMAIN)


# --- Run again ------------------------------------------------------------------------------------------------------


async def test_a_bundle_is_run_again_with_the_weights_it_names_and_no_others(bench: Bench) -> None:
    setup = bench.setup
    root = compute_checkpoint_root(setup.checkpoint)
    forged = bench.forge(FORGERIES["log-probs of another temperature"])
    evidence = decode_evidence(bench.setup.spool.get((await bench.find(forged)).evidence) or b"")
    with pytest.raises(LocalError, match="holds the checkpoint"):
        await run_again(setup, evidence)
    judged = await run_again(setup, with_root(evidence, root))
    assert judged.outcome is Outcome.INVALID, "the file's own header names the other root"
    tolerance = evidence.facts.terms.tolerance
    checks = {row.name: row for row in compare_metrics(evidence.metrics, judged, tolerance)}
    assert checks["logprob_error_max"].in_verdict is not None
    assert checks["logprob_error_max"].limit == 0.05
    assert checks["flaws"].limit == 0.0


async def run_again(setup: JobSetup, evidence: EvidenceBundle) -> Judgement:
    examined = await replay_audit(
        evidence.run,
        evidence.task,
        evidence.facts,
        file=evidence.file,
        weights=setup.checkpoint,
        dataset=b"",
        engine_config=EngineConfig(),
        folder=setup.folder / "again",
        clock=SystemClock(),
    )
    return examined.judge()


def with_root(evidence: EvidenceBundle, root: Digest) -> EvidenceBundle:
    weights = replace(evidence.facts.weights, root=root)
    return replace(
        evidence, task=replace(evidence.task, checkpoint_root=root), facts=replace(evidence.facts, weights=weights)
    )


# --- The bundle -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda e: replace(e, file=b"another file"), "Evidence.file"),
        (lambda e: replace(e, task=replace(e.task, checkpoint_root=digest("x"))), "Evidence.facts.weights.root"),
        (lambda e: replace(e, task=replace(e.task, submission=digest("x"))), "receipt"),
        (lambda e: replace(e, task=replace(e.task, lease=5)), "receipt.lease"),
    ],
)
async def test_a_bundle_that_contradicts_itself_is_refused(
    bench: Bench, change: Callable[[EvidenceBundle], EvidenceBundle], field: str
) -> None:
    forged = bench.forge(FORGERIES["another token"])
    raw = bench.setup.spool.get((await bench.find(forged)).evidence) or b""
    with pytest.raises(RemoteError) as caught:
        decode_evidence(encode(change(decode_evidence(raw))))
    assert caught.value.field == field
    for damaged in (raw[:-1], raw + b"\0", b"", raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]):
        with pytest.raises(RemoteError):
            decode_evidence(damaged)
    with pytest.raises(RemoteError, match=r"Evidence.version: is 5, this program reads 4: upgrade prime-swarm"):
        decode_evidence(b"fields that are not known yet" + raw[29:-1] + b"\x05")


async def test_a_file_that_is_too_large_for_a_bundle_is_named_by_its_digest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_node.jobs.evidence_bundle.BUNDLED_FILE_BYTES_MAX", 1_000)
    setup, large = bench.setup, bytes(1_001)
    task = setup.task(large, bench.lease)
    event = await bench.audit(large)
    assert isinstance(event, AuditDone)
    evidence = decode_evidence(setup.spool.get(event.finding.evidence) or b"")
    assert (evidence.file, evidence.task) == (b"", task)
    assert evidence.task.file_digest == sha256(large).digest()
    assert evidence.numbers == ()


async def test_a_finding_has_its_own_read_proof_whatever_the_outcome(bench: Bench) -> None:
    for data in (bench.data, bench.forge(swap_token)):
        (reader, looks), *others = (await bench.find(data)).read_proofs.items()
        assert (reader, len(looks), others) == (KEY.node, READ_PROOF_BYTES, [])


async def test_an_inspection_yields_the_read_proofs_of_the_readers_only(bench: Bench) -> None:
    said, other = (await bench.find(bench.data)).read_proofs[KEY.node], NodeId(bytes(20))
    event = await bench.audit(bench.data, readers=(ReadCoverage(KEY.node, 0), ReadCoverage(other, 0)))
    assert isinstance(event, AuditDone)
    seen = event.finding.read_proofs
    assert seen.keys() == {KEY.node, other}
    assert not is_read_proof_refuted(said, seen[KEY.node])
    assert is_read_proof_refuted(said, seen[other])
    assert is_read_proof_refuted(seen[other], seen[KEY.node])
    assert not event.finding.has_bundle


async def test_a_file_that_fails_without_the_model_has_no_read_proof(bench: Bench) -> None:
    finding = await bench.find(bench.forge(FORGERIES["another prompt"]))
    assert (finding.outcome, finding.read_proofs) == (Outcome.FRAUDULENT, {})
    event = await bench.audit(b"no file", readers=(ReadCoverage(KEY.node, 0),))
    assert isinstance(event, AuditDone)
    assert event.finding.read_proofs == {}
