"""Hostile evidence bundles, frames of an engine gone wrong, and answers of a coordinator that is none."""

import json
from hashlib import sha256
from io import BytesIO

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
    ReadProofFrame,
    decode_frame_body,
    decode_frame_header,
    encode_frame,
)
from prime_node.engine.interface import Completion, EngineFacts
from prime_node.engine.measurement import RowMeasurement
from prime_node.jobs.evidence_bundle import EVIDENCE_VERSION, EvidenceBundle, decode_evidence
from prime_node.jobs.file_checks import Flaw
from prime_node.log import public_api as public_log
from prime_protocol.constants import READ_PROOF_PROBES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef, StepReply
from prime_protocol.wire.strict_json import parse_json
from prime_runtime import tokenizer_process
from prime_runtime.tokenizer_process import TokenizerReply
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
            blocks_read=3,
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
        case ReadProofFrame() as reply:
            values.decode_projections(reply)


def read_answers(raw: bytes) -> None:
    answer = parse_json("answer", raw)
    try:
        public_log.parse_answer("answer", answer, public_log.parse_evidence_digest)
    except RemoteError:
        public_log.parse_answer("answer", answer, public_log.parse_receipt)


@pytest.mark.fuzz
def test_no_bundle_breaks_an_audit_that_is_run_again() -> None:
    assert_survives(decode_evidence, [make_evidence(b"a rollout file"), make_evidence(b"")])


@pytest.mark.fuzz
def test_no_frame_of_an_engine_breaks_its_node() -> None:
    replies = (
        values.encode_completion(DONE),
        values.encode_measurement(NUMBERS),
        values.encode_facts(FACTS),
        values.encode_projections(KEY.node, [0.5] * READ_PROOF_PROBES),
        EngineReady(software=("torch 2.13.0",)),
        EngineProgress(steps=3, running=5, waiting=1),
        JobDone(job=1),
        JobFailed(job=1, problem=b"no memory"),
    )
    assert_survives(read_frame, [encode_frame(reply) for reply in replies])


def read_tokenizer_reply(frame: bytes) -> None:
    body = tokenizer_process.read_frame(BytesIO(frame))
    if body is not None:
        reply = decode(TokenizerReply, body, bytes_max=tokenizer_process.PIPE_BYTES_MAX)
        tokenizer_process.decode_results(reply)


@pytest.mark.fuzz
def test_no_frame_of_a_tokenizer_breaks_its_node() -> None:
    good = TokenizerReply(number=3, tokens=(b"\1\0\0\0",), texts=("é".encode(),), problem=b"", is_last=False)
    bad = TokenizerReply(number=3, tokens=(), texts=(), problem=b"panic", is_last=True)
    bodies = [encode(reply) for reply in (good, bad)]
    assert_survives(read_tokenizer_reply, [len(body).to_bytes(4, "big") + body for body in bodies])


@pytest.mark.fuzz
def test_no_answer_breaks_a_nodes_view_of_the_log() -> None:
    verdict = {"outcome": "fraudulent", "reason": "margin", "evidence": str(digest("y"))}
    digests = dict.fromkeys(("checkpoint_root", "file_digest", "rollout_root"), str(digest("x")))
    receipt = {"network": NETWORK, "run": RUN, "step": 3, "lease": 4, "node": "0x" + "22" * 20, **digests}
    entry = {"body": {"receipt": receipt, "signature": "0x" + "11" * 65}}
    corpus = [{"rows": [verdict], "next": "12"}, entry]
    assert_survives(read_answers, [json.dumps(each).encode() for each in corpus])
