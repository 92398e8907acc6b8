"""Which families there are. Opening one from its spec is the only way to get one."""

from collections.abc import Callable

from prime_protocol.errors import RemoteError
from prime_protocol.tasks.characters import Arithmetic, SortDigits
from prime_protocol.tasks.family import TaskFamily, TaskParameters, TaskSetSpec
from prime_protocol.tasks.math_answer import MathAnswer
from prime_protocol.tasks.python_code import PythonCode
from prime_protocol.tasks.reasoning_gym import ReasoningGym

FAMILIES: dict[str, Callable[[TaskParameters, bytes], TaskFamily]] = {
    "arithmetic": Arithmetic.open,
    "math-answer": MathAnswer.open,
    "python-code": PythonCode.open,
    "reasoning-gym": ReasoningGym.open,
    "sort-digits": SortDigits.open,
}


def open_family(spec: TaskSetSpec, dataset: bytes = b"") -> TaskFamily:
    """The family with these parameters. `dataset` is the problem file, for the families that name one."""
    if spec.family not in FAMILIES:
        raise RemoteError("task_set.family", f"there is no family {spec.family}")
    parameters = TaskParameters(spec)
    family = FAMILIES[spec.family](parameters, dataset)
    parameters.finish()
    return family
