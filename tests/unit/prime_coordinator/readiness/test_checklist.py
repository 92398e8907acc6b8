"""The operator's checklist: a network that can work for others, and what each broken set-up is told to do."""

from dataclasses import replace
from typing import Any

import pytest

from prime_coordinator.readiness.checklist import build_readiness
from prime_coordinator.readiness.facts import NetworkFacts, PublicAddress, RunFacts
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.checklist import CheckGrade, CheckResult, find_worst
from support.ledger_network import TERMS as LEDGER_TERMS

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
PRIME = 10**9
TERMS = replace(
    LEDGER_TERMS,
    quorum=3,
    inspectors=(NodeId(b"\x07" * 20),),
    model_files=Digest(b"\x01" * 32),
    calibration="cpu float32",
    calibrated_at_ms=NOW_MS - 24 * HOUR_MS,
    step_budget_nano=2 * PRIME,
)
RUN = RunFacts(
    name="demo",
    status="active",
    terms=TERMS,
    latest_step=5,
    published_ms=NOW_MS - 60_000,
    step_ms=10 * 60_000,
    pool_nano=1_000 * PRIME,
    owners_registered=9,
    serving=3,
)
GOOD = NetworkFacts(
    ticker="PRIME",
    is_devnet=False,
    is_evm=False,
    now_ms=NOW_MS,
    address=PublicAddress(url="https://swarm.example", is_loopback=True, has_tls=True),
    faucet_nano=0,
    balance_nano=50 * PRIME,
    deposited_nano=2_000 * PRIME,
    randomness="quicknet",
    randomness_is_own=False,
    randomness_late_s=0,
    disk_free_bytes=500 * 10**9,
    nodes_online=12,
    runs=(RUN,),
)


def list_lines(**changes: Any) -> dict[str, CheckResult]:
    return {line.what: line for line in build_readiness(replace(GOOD, **changes))}


def list_run_lines(**changes: Any) -> dict[str, CheckResult]:
    return list_lines(runs=(replace(RUN, **changes),))


def test_a_network_that_can_work_has_nothing_to_do() -> None:
    lines = list_lines()
    assert find_worst(list(lines.values())) is None
    assert lines["demo: pool"].found == "1,000 PRIME: 500 steps of 2, 3 d 11 h at this pace"


NOWHERE = PublicAddress(url="", is_loopback=True, has_tls=False)
DEAF = PublicAddress(url="https://swarm.example", is_loopback=False, has_tls=True, problem="cannot reach it")


@pytest.mark.parametrize(
    ("changes", "what", "grade", "found", "advice"),
    [
        ({"address": NOWHERE}, "address", CheckGrade.MISSING, "this machine only", "--listen-host 0.0.0.0"),
        ({"address": NOWHERE, "is_devnet": True}, "address", CheckGrade.NOTE, "this machine only", "--public-url"),
        (
            {"address": replace(NOWHERE, is_loopback=False)},
            "address",
            CheckGrade.NOTE,
            "no setting says",
            "--public-url https://",
        ),
        ({"address": DEAF}, "address", CheckGrade.MISSING, "cannot reach it", "port forwarding"),
        (
            {"address": PublicAddress(url="http://swarm.example", is_loopback=False, has_tls=False)},
            "TLS",
            CheckGrade.NOTE,
            "plain HTTP",
            "--listen-tls-certificate",
        ),
        ({"deposited_nano": 0}, "stake for nodes", CheckGrade.MISSING, "no deposit yet", "deposit ADDRESS AMOUNT"),
        (
            {"faucet_nano": TERMS.stake_min_nano - 1},
            "stake for nodes",
            CheckGrade.MISSING,
            "the faucet gives",
            "faucet.amount_nano",
        ),
        ({"randomness_is_own": True}, "randomness", CheckGrade.NOTE, "quicknet", "--randomness drand:quicknet"),
        ({"randomness_late_s": 3_600}, "rounds", CheckGrade.MISSING, "1 h 0 min late", "--randomness-urls"),
        ({"disk_free_bytes": 10**9}, "disk", CheckGrade.MISSING, "1.0 GB free", "prime-coordinator disk"),
        ({"disk_free_bytes": 10**10}, "disk", CheckGrade.NOTE, "10.0 GB free", "prime-coordinator disk"),
        ({"nodes_online": 0}, "nodes", CheckGrade.NOTE, "0 online", "invite contributors"),
        ({"runs": ()}, "runs", CheckGrade.MISSING, "none", "first-run.md"),
    ],
)
def test_what_a_network_lacks_is_said_with_what_to_do(
    changes: dict[str, Any], what: str, grade: CheckGrade, found: str, advice: str
) -> None:
    line = list_lines(**changes)[what]
    assert line.grade is grade
    assert found in line.found
    assert advice in line.advice


@pytest.mark.parametrize(
    ("changes", "what", "grade", "found", "advice"),
    [
        ({"status": "paused"}, "run demo", CheckGrade.MISSING, "paused", "run resume demo"),
        ({"latest_step": -1, "published_ms": None}, "demo: trainer", CheckGrade.MISSING, "no checkpoint yet", "keys"),
        (
            {"published_ms": NOW_MS - 48 * HOUR_MS},
            "demo: trainer",
            CheckGrade.NOTE,
            "published 2 d ago",
            "run show demo",
        ),
        ({"serving": 0}, "demo: weights", CheckGrade.MISSING, "0 nodes", "prime-trainer origin"),
        ({"pool_nano": PRIME}, "demo: pool", CheckGrade.MISSING, "work is not paid", "run fund demo"),
        ({"pool_nano": 20 * PRIME}, "demo: pool", CheckGrade.NOTE, "10 steps of 2", "account has 50"),
        ({"owners_registered": 8}, "demo: validators", CheckGrade.MISSING, "of 8 owners", "--role validator"),
        (
            {"terms": replace(TERMS, inspectors=())},
            "demo: inspector",
            CheckGrade.MISSING,
            "none",
            "run update demo --inspectors",
        ),
        (
            {"terms": replace(TERMS, calibration="", calibrated_at_ms=0)},
            "demo: calibration",
            CheckGrade.MISSING,
            "none",
            "prime-node calibrate",
        ),
        (
            {"terms": replace(TERMS, calibrated_at_ms=NOW_MS - 400 * 24 * HOUR_MS)},
            "demo: calibration",
            CheckGrade.NOTE,
            "400 days old",
            "measure again",
        ),
        (
            {"terms": replace(TERMS, model_files=Digest(bytes(32)))},
            "demo: model files",
            CheckGrade.MISSING,
            "any",
            "--model-config",
        ),
    ],
)
def test_what_a_run_lacks_is_said_with_what_to_do(
    changes: dict[str, Any], what: str, grade: CheckGrade, found: str, advice: str
) -> None:
    line = list_run_lines(**changes)[what]
    assert line.grade is grade
    assert found in line.found
    assert advice in line.advice


def test_a_devnet_needs_neither_inspector_nor_calibration_nor_three_quorums() -> None:
    bare = replace(TERMS, inspectors=(), calibration="", calibrated_at_ms=0, model_files=Digest(bytes(32)), quorum=1)
    lines = list_lines(is_devnet=True, runs=(replace(RUN, terms=bare, owners_registered=1),))
    assert not [line for line in lines.values() if line.grade is CheckGrade.MISSING]


def test_terms_that_pay_nothing_need_no_pool() -> None:
    lines = list_run_lines(terms=replace(TERMS, step_budget_nano=0), pool_nano=0)
    assert lines["demo: pool"].grade is CheckGrade.NOTE
