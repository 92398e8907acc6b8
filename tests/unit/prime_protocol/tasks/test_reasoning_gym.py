"""Reasoning-gym datasets: which are taken, which are refused and why, and which answers may reach a scorer."""

import json

import pytest

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.tasks import reasoning_gym
from prime_protocol.tasks.family import Grade, GradeReason, JobEnd, SandboxJob, SandboxOutcome, TaskFamily, TaskSetSpec
from prime_protocol.tasks.reasoning_gym import REFUSED, is_harmless
from prime_protocol.tasks.registry import open_family

pytest.importorskip("reasoning_gym")


def gym(dataset: str = "chain_sum", rest: str = "size=50") -> TaskFamily:
    return open_family(TaskSetSpec.parse(f"reasoning-gym?dataset={dataset}&{rest}"))


def scored(result: bytes, rest: str = "size=50", code: int = 0) -> Grade:
    family = gym(rest=rest)
    return family.grade_outcome(family.make(0), SandboxOutcome(JobEnd.EXIT, code, b"1.0", b"", result))


def test_a_task_is_the_same_whenever_it_is_made() -> None:
    tasks = [gym(rest="seed=5&size=50").make(index) for index in range(20)]
    assert tasks == [gym(rest="seed=5&size=50").make(index) for index in range(20)]
    assert tasks != [gym(rest="seed=6&size=50").make(index) for index in range(20)]
    with pytest.raises(AssertionError):
        gym().make(50)


def test_options_of_the_dataset_are_passed_on() -> None:
    family = open_family(
        TaskSetSpec.parse("reasoning-gym?config.allow_negation=false&config.max_terms=2&dataset=chain_sum&size=9")
    )
    assert all(len(family.make(index).prompt.split(" =")[0].split("+")) <= 2 for index in range(9))


@pytest.mark.parametrize("dataset", sorted(REFUSED))
def test_datasets_that_cannot_be_graded_alike_are_refused(dataset: str) -> None:
    with pytest.raises(RemoteError, match=dataset) as caught:
        gym(dataset)
    assert caught.value.field == "task_set.dataset"


@pytest.mark.parametrize(
    "spec",
    [
        "reasoning-gym?dataset=no_such_dataset",
        "reasoning-gym?config.no_such_option=1&dataset=chain_sum",
        "reasoning-gym?config.min_terms=0&dataset=chain_sum",
    ],
)
def test_what_the_package_does_not_know_is_refused(spec: str) -> None:
    with pytest.raises(RemoteError) as caught:
        open_family(TaskSetSpec.parse(spec))
    assert caught.value.field == "task_set.dataset"


def test_another_version_is_the_run_s_fault_and_a_missing_package_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteError) as caught:
        gym(rest="size=9&version=0.1.24")
    assert caught.value.field == "task_set.version"
    monkeypatch.setattr(reasoning_gym, "PACKAGE", "no-such-package")
    with pytest.raises(LocalError, match="pip install"):
        gym()


def test_the_dataset_s_own_answer_is_right_at_once() -> None:
    family = gym()
    task = family.make(3)
    assert family.grade(task, f"</think><answer>{task.key}</answer>") == Grade(1.0, GradeReason.RIGHT)


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("<answer>1</answer>", GradeReason.NO_ANSWER),
        ("</think>1", GradeReason.NO_ANSWER),
        ("</think><answer> </answer>", GradeReason.NO_ANSWER),
        ("</think><answer>" + "1" * 20_001 + "</answer>", GradeReason.TOO_LONG),
    ],
)
def test_no_answer_gets_nothing(completion: str, reason: GradeReason) -> None:
    assert gym().grade(gym().make(0), completion) == Grade(0.0, reason)


def test_another_answer_goes_to_the_dataset_s_scorer() -> None:
    job = gym(rest="seed=5&size=50").grade(gym().make(7), "</think><answer>12</answer>")
    assert isinstance(job, SandboxJob)
    request = {"dataset": "chain_sum", "config": {}, "seed": 5, "size": 50, "index": 7, "answer": "12"}
    assert json.loads(job.stdin) == request


@pytest.mark.parametrize(
    ("dataset", "answer", "harmless"),
    [
        ("chain_sum", "__import__('os')", True),
        ("countdown", "(1 + 2) * 3 / 4.5", True),
        ("countdown", "__import__('os')", False),
        ("puzzle24", "exit()", False),
        ("simple_integration", "x**2/2 + sin(3*x) + C", True),
        ("simple_integration", "exec(chr(95))", False),
        ("simple_integration", "x.subs(x, 1)", False),
        ("intermediate_integration", "getattr(x, a)", False),
        ("binary_matrix", "[[0, 1], [1, 0]]", True),
        ("binary_matrix", "[print(1)]", False),
        ("n_queens", "[['_', 'Q']]", True),
        ("n_queens", "[x for x in ()]", False),
        ("spiral_matrix", "[1, 2", True),
        ("string_insertion", "['A', 'B']", True),
        ("string_insertion", "['A'.lower()]", False),
    ],
)
def test_what_a_scorer_would_run_never_reaches_it(dataset: str, answer: str, harmless: bool) -> None:
    assert is_harmless(dataset, answer) is harmless


def test_an_answer_that_would_be_run_is_malformed() -> None:
    family = gym("puzzle24", "size=2")
    attack = "</think><answer>__import__('os').write(3, b'1.0')</answer>"
    assert family.grade(family.make(0), attack) == Grade(0.0, GradeReason.MALFORMED)


@pytest.mark.parametrize(
    ("result", "exact", "graded"),
    [
        (b"1.0", Grade(1.0, GradeReason.RIGHT), Grade(1.0, GradeReason.RIGHT)),
        (b"0.0", Grade(0.0, GradeReason.WRONG), Grade(0.0, GradeReason.WRONG)),
        (b"0.05", Grade(0.0, GradeReason.WRONG), Grade(0.05, GradeReason.PARTLY)),
        (b"", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
        (b"nan", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
        (b"1e9", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
        (b"-1.0", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
        (b"1.0\n", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
        (b"..", Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.CRASHED)),
    ],
)
def test_a_score_is_a_number_from_0_to_1_on_the_result_channel(result: bytes, exact: Grade, graded: Grade) -> None:
    assert scored(result) == exact
    assert scored(result, "reward=graded&size=50") == graded
    assert scored(result, code=1) == Grade(0.0, GradeReason.CRASHED)
