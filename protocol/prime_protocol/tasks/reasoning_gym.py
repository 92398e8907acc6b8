"""The datasets of the reasoning-gym package: each task from (seed, index), each answer scored by the dataset's rule.

Scoring is a job for the sandbox: eight scorers pass the answer to `eval`, or to sympy, which does the same. The sandbox
prevents harm, but not an answer that sets its own score, so an answer must first have the form given here.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from prime_protocol.constants import ANSWER_CHARS_MAX, GRADER_CPU_S, TASKS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.tasks.family import (
    NUMBER,
    THINKING,
    Grade,
    GradeReason,
    SandboxJob,
    SandboxLimits,
    SandboxOutcome,
    Task,
    TaskParameters,
    extract_tagged,
    grade_failure,
    strip_thinking,
)

INSTRUCTION = "\n\nThink first, then give the final answer between <answer> and </answer>."
PACKAGE = "reasoning-gym"
VERSION = "0.1.25"
"""The version whose tasks and scores were checked. Another may draw other tasks from the same seed."""

OWN_ANSWER_FAILS = "its own answer does not get the full score"
DEPENDS_ON_HASHES = "its tasks depend on the hash seed of the process, so worker and validator would disagree"
REFUSED = {
    "boxnet": OWN_ANSWER_FAILS,
    "graph_color": OWN_ANSWER_FAILS,
    "propositional_logic": OWN_ANSWER_FAILS,
    "rubiks_cube": OWN_ANSWER_FAILS,
    "rush_hour": OWN_ANSWER_FAILS,
    "composite": "it needs other datasets as arguments",
    "codeio": "it runs programs of its data file to make a task",
    "isomorphic_strings": DEPENDS_ON_HASHES,
    "knight_swap": DEPENDS_ON_HASHES,
    "list_functions": DEPENDS_ON_HASHES,
    "polynomial_multiplication": DEPENDS_ON_HASHES,
    "ransom_note": DEPENDS_ON_HASHES,
    "word_ladder": DEPENDS_ON_HASHES,
}

LIST_LITERAL = re.compile(r"[\sA-Z0-9\[\],'\"]*")
"""No brackets to call with, no dots, no lower case: nothing that `eval` could run."""
SUM = re.compile(r"[\s0-9+\-*/().]*")
FORMULA = re.compile(r"[\s0-9A-Za-z+\-*/^().]*")
SCORED_BY_EVAL = {
    "binary_matrix": LIST_LITERAL,
    "n_queens": re.compile(r"[\sA-Z0-9\[\],'\"_]*"),
    "spiral_matrix": LIST_LITERAL,
    "string_insertion": LIST_LITERAL,
    "countdown": SUM,
    "puzzle24": SUM,
    "simple_integration": FORMULA,
    "intermediate_integration": FORMULA,
}
WORD = re.compile(r"[A-Za-z]+")
FORMULA_WORDS = frozenset(
    (
        "sin",
        "cos",
        "tan",
        "exp",
        "log",
        "ln",
        "sqrt",
        "asin",
        "acos",
        "atan",
        "sec",
        "csc",
        "cot",
        "sinh",
        "cosh",
        "tanh",
        "pi",
    )
)
"""Names in a formula beside single letters. Sympy would run any builtin function by its name."""

LIMITS = SandboxLimits(cpu_s=GRADER_CPU_S)
PREPARE = "import reasoning_gym"
GRADER = """
import json, os, sys
import reasoning_gym

request = json.load(sys.stdin)
try:
    options = {"seed": request["seed"], "size": request["size"], **request["config"]}
    dataset = reasoning_gym.create_dataset(request["dataset"], **options)
    score = float(dataset.score_answer(request["answer"], dataset[request["index"]]))
except Exception:
    score = 0.0
os.write(3, repr(score).encode())
os._exit(0)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym:
    """One dataset with its configuration."""

    dataset: str
    config: tuple[tuple[str, str], ...]
    seed: int
    size: int
    exact: bool
    thinking: bool
    name: str = PACKAGE

    @classmethod
    def open(cls, parameters: TaskParameters, dataset: bytes) -> Self:
        name = parameters.take_text("dataset")
        if name in REFUSED:
            raise RemoteError("task_set.dataset", f"{name} cannot be used: {REFUSED[name]}")
        family = cls(
            dataset=name,
            config=parameters.take_prefixed("config."),
            seed=parameters.take_integer("seed", 0, low=0, high=2**32 - 1),
            size=parameters.take_integer("size", 100_000, low=1, high=TASKS_MAX),
            exact=parameters.take_choice("reward", ("exact", "graded")) == "exact",
            thinking=parameters.take_choice("thinking", THINKING) == "required",
        )
        if parameters.take_choice("version", (VERSION,)) != installed_version():
            raise LocalError(f"this run needs {PACKAGE} {VERSION}: pip install 'prime-swarm[tasks]'")
        open_dataset(family.dataset, family.seed, family.size, family.config)
        return family

    def make(self, index: int) -> Task:
        assert 0 <= index < self.size
        entry = open_dataset(self.dataset, self.seed, self.size, self.config)[index]
        return Task(self.name, index, entry["question"] + INSTRUCTION, str(entry["answer"]))

    def grade(self, task: Task, completion: str) -> Grade | SandboxJob:
        text = strip_thinking(completion, required=self.thinking)
        answer = extract_tagged(text) if text is not None else None
        if not answer:
            return Grade(0.0, GradeReason.NO_ANSWER)
        if len(answer) > ANSWER_CHARS_MAX:
            return Grade(0.0, GradeReason.TOO_LONG)
        if answer == task.key:
            return Grade(1.0, GradeReason.RIGHT)
        if not is_harmless(self.dataset, answer):
            return Grade(0.0, GradeReason.MALFORMED)
        request = {
            "dataset": self.dataset,
            "config": parse_config(self.config),
            "seed": self.seed,
            "size": self.size,
            "index": task.index,
            "answer": answer,
        }
        return SandboxJob(GRADER, json.dumps(request).encode(), LIMITS, prepare=PREPARE)

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        failure = grade_failure(outcome)
        if failure is not None:
            return failure
        score = parse_score(outcome.result)
        if score is None:
            return Grade(0.0, GradeReason.CRASHED)
        if score == 1.0:
            return Grade(1.0, GradeReason.RIGHT)
        if self.exact or score == 0.0:
            return Grade(0.0, GradeReason.WRONG)
        return Grade(score, GradeReason.PARTLY)


def is_harmless(dataset: str, answer: str) -> bool:
    """Whether the dataset's scorer only compares this answer, and runs nothing that it names."""
    form = SCORED_BY_EVAL.get(dataset)
    if form is None:
        return True
    words = (word for word in WORD.findall(answer) if len(word) > 1)
    return form.fullmatch(answer) is not None and (form is not FORMULA or all(word in FORMULA_WORDS for word in words))


def parse_score(result: bytes) -> float | None:
    """A score as Python prints it, from 0 to 1."""
    if not re.fullmatch(rb"[0-9.e-]{1,30}", result):
        return None
    try:
        score = float(result)
    except ValueError:
        return None
    return score if 0.0 <= score <= 1.0 else None


def parse_config(config: tuple[tuple[str, str], ...]) -> dict[str, int | bool | str]:
    """Values as the package wants them: whole numbers, true and false, or text."""
    words: dict[str, bool] = {"true": True, "false": False}
    return {name: int(text) if NUMBER.fullmatch(text) else words.get(text, text) for name, text in config}


def installed_version() -> str | None:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


@lru_cache(maxsize=16)
def open_dataset(name: str, seed: int, size: int, config: tuple[tuple[str, str], ...]) -> Any:
    """The package's dataset. A name or an option that it does not know is the run's fault."""
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(name, seed=seed, size=size, **parse_config(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise RemoteError("task_set.dataset", f"{name} with these options: {error}") from None
