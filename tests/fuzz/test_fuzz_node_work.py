"""Hostile evidence bundles, frames of an engine gone wrong, and answers of a coordinator that is none."""

import json
from hashlib import sha256

import numpy as np
import pytest

from fuzz.harness import assert_survives
from prime_node.engine import frames as values
from prime_node.engine.frames import (
    HEADER_BYTES,
    CompletionFrame,
    EngineProgress,
    EngineReady,
    JobDone,
    JobFailed,
    MeasurementFrame,
    ModelLoaded,
    decode_frame_body,
    decode_frame_header,
    encode_frame,
)
from prime_node.engine.interface import Completion, EngineFacts
from prime_node.engine.measurement import RowMeasurement
from prime_node.jobs.examination import EVIDENCE_VERSION, EvidenceBundle, decode_evidence
from prime_node.jobs.file_checks import Flaw
from prime_node.log import public_api as public_log
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Metric, Outcome
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef, StepReply
from prime_protocol.wire.strict_json import parse_json
from support.job_setup import BEACON, KEY, NETWORK, ROOT, RUN, SEED, SETUP_TERMS, digest

NUMBERS = RowMeasurement(
    row=1,
    tokens=40,
    chunks=(ChunkReport(128, 0, 0, 3, 1, 2, 9, 0, 0), ChunkReport(128, 60, 1, 3, 1, 2, 9, 0, 0)),
    proof_problem="",
    spans=(ReplayedChunk(32, 3.5, 2, 4.0, 0.1, 0, 0.1), ReplayedChunk(8, 0.5, 33, 0.5, 0.05, 34, 0.1)),
    margin_max=3.5,
    margin_at=2,
    margin_sum=4.5,
    logprob_error_max=0.1,
    logprob_error_at=0,
    logprob_error_sum=0.2,
    eos_logprob=-2.0,
)
FACTS = EngineFacts(engine="torch", device="cpu", precision="float32", hidden=64, vocabulary=64, context_max=2048)
DONE = Completion(
    number=3,
    tokens=np.arange(4, dtype=np.int32),
    logprobs=-np.ones(4, np.float32),
    finish=FinishReason.EOS,
    proofs=bytes(258),
)


def make_evidence(file: bytes) -> bytes:
    weights = CheckpointRef(step=Step(0), root=ROOT, manifest=digest("manifest"), beacon=BEACON)
    task = AuditTask(
        submission=digest("submission"),
        round=0,
        seed=SEED,
        file_digest=Digest(sha256(file).digest()),
        lease=4,
        node=KEY.node,
        step=Step(0),
        checkpoint_root=ROOT,
        first_slot=0,
        slots=1,
        deadline_ms=1,
    )
    flaw = Flaw(check="margin", row=1, place=2, value=3.5, limit=0.5, text="margin of row 1, token 2 is 3.5")
    return encode(
        EvidenceBundle(
            version=EVIDENCE_VERSION,
            network=NETWORK,
            run=RUN,
            task=task,
            facts=StepReply(terms=SETUP_TERMS, beacon=BEACON, weights=weights),
            receipt=None,
            signature=None,
            file=file,
            outcome=Outcome.FRAUDULENT,
            reason=flaw.text,
            metrics=(Metric(name="margin_max", value=3.5),),
            flaws=(flaw,),
            numbers=(values.encode_measurement(NUMBERS),),
            engine=values.encode_facts(FACTS),
            software=("torch 2.13.0",),
        )
    )


def read_frame(frame: bytes) -> None:
    """As the node reads what its engine writes."""
    if len(frame) < HEADER_BYTES:
        raise RemoteError("frame", "is cut off")
    kind, length = decode_frame_header(frame[:HEADER_BYTES])
    if length != len(frame) - HEADER_BYTES:
        raise RemoteError("frame", "is cut off")
    match decode_frame_body(kind, frame[HEADER_BYTES:]):
        case CompletionFrame() as reply:
            values.decode_completion(reply)
        case MeasurementFrame() as reply:
            values.decode_measurement(reply)
        case ModelLoaded() as reply:
            values.decode_facts(reply)


def read_answers(raw: bytes) -> None:
    answer = parse_json("answer", raw)
    for make in (
        public_log.parse_submissions,
        public_log.parse_run,
        public_log.parse_rejection_reason,
        public_log.parse_slash,
    ):
        try:
            public_log.parse_answer("answer", answer, make)
            return
        except RemoteError:
            continue
    public_log.parse_answer("answer", answer, lambda given: public_log.parse_node(given, RUN))


@pytest.mark.fuzz
def test_no_bundle_breaks_an_audit_that_is_run_again() -> None:
    assert_survives(decode_evidence, [make_evidence(b"a rollout file"), make_evidence(b"")])


@pytest.mark.fuzz
def test_no_frame_of_an_engine_breaks_its_node() -> None:
    replies = (
        values.encode_completion(DONE),
        values.encode_measurement(NUMBERS),
        values.encode_facts(FACTS),
        EngineReady(software=("torch 2.13.0",)),
        EngineProgress(steps=3, tokens=5, rows=1),
        JobDone(job=1),
        JobFailed(job=1, problem=b"no memory"),
    )
    assert_survives(read_frame, [encode_frame(reply) for reply in replies])


@pytest.mark.fuzz
def test_no_answer_breaks_a_nodes_view_of_the_log() -> None:
    row = {"submission": str(digest("x")), "step": 0, "progress": "waiting", "verdicts": 0, "credited": False}
    verdict = {"outcome": "fraudulent", "reason": "margin", "evidence": str(digest("y"))}
    node = {
        "summary": {"stake_nano": 1, "earned_nano": 0, "fraudulent": 0},
        "owner_balance_nano": 5,
        "standings": [{"run": RUN, "standing": "ready", "works": True, "way_out": ""}],
    }
    corpus = [
        {"rows": [row], "next": None},
        {"rows": [verdict], "next": "12"},
        {"terms": {"stake_min_nano": 4}, "steps": [{"step": 0, "paid": False}]},
        {"progress": "proposed", "appeal_until_ms": 12},
        node,
    ]
    assert_survives(read_answers, [json.dumps(each).encode() for each in corpus])
