"""Hostile evidence bundles, frames of an engine gone wrong, and answers of a coordinator that is none."""

import json
from hashlib import sha256

import numpy as np
import pytest
from fuzz.harness import assert_survives
from work_scene import BEACON, KEY, NETWORK, ROOT, RUN, SCENE_TERMS, SEED, digest

from prime_node import public_log
from prime_node.checks import Flaw
from prime_node.engine import frame_values as values
from prime_node.engine.frames import (
    HEAD_BYTES,
    CompletionFrame,
    Done,
    Failed,
    Loaded,
    NumbersFrame,
    Progress,
    Ready,
    pack,
    read_body,
    read_head,
)
from prime_node.engine.measuring import RowNumbers
from prime_node.engine.seam import Completion, EngineFacts
from prime_node.evidence import VERSION, Evidence, open_evidence
from prime_protocol.codec import encode
from prime_protocol.entries import Metric, Outcome
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, Step
from prime_protocol.json_text import parse_json
from prime_protocol.messages import AuditTask, StepFacts, Weights
from prime_protocol.rollouts import Finish
from prime_protocol.toploc_verify import ChunkReport
from prime_protocol.weighing import Span

NUMBERS = RowNumbers(
    row=1,
    tokens=40,
    chunks=(ChunkReport(128, 0, 0, 3, 1, 2, 9, 0, 0), ChunkReport(128, 60, 1, 3, 1, 2, 9, 0, 0)),
    proof_problem="",
    spans=(Span(32, 3.5, 2, 4.0, 0.1, 0, 0.1), Span(8, 0.5, 33, 0.5, 0.05, 34, 0.1)),
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
    finish=Finish.EOS,
    proofs=bytes(258),
)


def make_evidence(file: bytes) -> bytes:
    weights = Weights(step=Step(0), root=ROOT, manifest=digest("manifest"), beacon=BEACON)
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
        Evidence(
            version=VERSION,
            network=NETWORK,
            run=RUN,
            task=task,
            facts=StepFacts(terms=SCENE_TERMS, beacon=BEACON, weights=weights),
            receipt=None,
            signature=None,
            file=file,
            outcome=Outcome.HARD,
            reason=flaw.text,
            metrics=(Metric(name="margin_max", value=3.5),),
            flaws=(flaw,),
            numbers=(values.from_numbers(NUMBERS),),
            engine=values.from_facts(FACTS),
            software=("torch 2.13.0",),
        )
    )


def read_frame(frame: bytes) -> None:
    """As the node reads what its engine writes."""
    if len(frame) < HEAD_BYTES:
        raise RemoteError("frame", "is cut off")
    kind, length = read_head(frame[:HEAD_BYTES])
    if length != len(frame) - HEAD_BYTES:
        raise RemoteError("frame", "is cut off")
    match read_body(kind, frame[HEAD_BYTES:]):
        case CompletionFrame() as reply:
            values.to_completion(reply)
        case NumbersFrame() as reply:
            values.to_numbers(reply)
        case Loaded() as reply:
            values.to_facts(reply)


def read_answers(raw: bytes) -> None:
    answer = parse_json("answer", raw)
    for make in (public_log.to_submissions, public_log.to_run, public_log.to_reason, public_log.to_slash):
        try:
            public_log.read("answer", answer, make)
            return
        except RemoteError:
            continue
    public_log.read("answer", answer, lambda given: public_log.to_node(given, RUN))


@pytest.mark.fuzz
def test_no_bundle_breaks_an_audit_that_is_run_again() -> None:
    assert_survives(open_evidence, [make_evidence(b"a rollout file"), make_evidence(b"")])


@pytest.mark.fuzz
def test_no_frame_of_an_engine_breaks_its_node() -> None:
    replies = (
        values.from_completion(DONE),
        values.from_numbers(NUMBERS),
        values.from_facts(FACTS),
        Ready(software=("torch 2.13.0",)),
        Progress(steps=3, tokens=5, rows=1),
        Done(job=1),
        Failed(job=1, problem=b"no memory"),
    )
    assert_survives(read_frame, [pack(reply) for reply in replies])


@pytest.mark.fuzz
def test_no_answer_breaks_a_nodes_view_of_the_log() -> None:
    row = {"submission": str(digest("x")), "step": 0, "progress": "waiting", "verdicts": 0, "credited": False}
    verdict = {"outcome": "hard", "reason": "margin", "evidence": str(digest("y"))}
    node = {
        "summary": {"stake_nano": 1, "earned_nano": 0, "hard": 0},
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
