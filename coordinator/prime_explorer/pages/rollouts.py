"""The rollouts of a submission, read strictly, with tokens decoded to text if a tokenizer is available."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, Protocol

from prime_explorer.config import ROLLOUT_CHARS_SHOWN, ROLLOUTS_SHOWN
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutLimits
from prime_protocol.tasks.family import Grade, TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, Slot

INLINE_FAMILIES = ("arithmetic", "sort-digits")
TOKENS_SHOWN = 400
"""Tokens shown of a completion without a tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """One completion."""

    slot: int
    sample: int
    task: int
    finish: str
    prompt: str
    completion: str
    is_cut: bool
    """The file has more of it."""
    prompt_tokens: int
    output_tokens: int
    reward: float | None
    """As graded here; null if its task set needs a sandbox or a dataset."""
    grade: str
    """Why it got that reward."""
    logprob_mean: float
    proofs: int
    """Chunks of 32 tokens, each with a proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsView:
    """Some rollouts of one file."""

    total: int
    first: int
    rows: tuple[RolloutView, ...]
    is_text: bool
    """False: token ids are shown, because this explorer has no tokenizer of the model."""
    problem: str
    """Why the file cannot be shown; empty if it can."""


class RunTokenizer(Protocol):
    """A tokenizer, named by the files of its model."""

    @property
    def digest(self) -> Digest:
        """Digest of the model files, as the terms of runs bind it."""
        ...

    def decode(self, token_lists: Sequence[Sequence[int]]) -> list[str]: ...


def find_tokenizer(models: Iterable[RunTokenizer], terms: dict[str, Any]) -> RunTokenizer | None:
    """The run's own tokenizer. A run that binds no files may use any model, so none is guessed."""
    wanted = Digest.parse(terms["model_files"])
    return None if wanted == ANY_MODEL_FILES else next((model for model in models if model.digest == wanted), None)


def make_unavailable(problem: str) -> RolloutsView:
    return RolloutsView(total=0, first=0, rows=(), is_text=False, problem=problem)


def _read_any_format(data: bytes, limits: RolloutLimits) -> Sequence[Rollout]:
    """The rows of a file. `limits` follow today's terms, which may have got or lost their table of classes since."""
    try:
        return read_rollouts(data, limits).rows
    except RemoteError as error:
        if error.field != "header.format":
            raise
        return read_rollouts(data, replace(limits, names_class=not limits.names_class)).rows


def read_rollout_views(
    data: bytes, terms: dict[str, Any], lease: dict[str, int], first: int, model: RunTokenizer | None
) -> RolloutsView:
    """`lease` has the slots and samples that the file must contain."""
    try:
        limits = RolloutLimits(
            first_slot=Slot(lease["first_slot"]),
            slots=lease["slots"],
            samples_per_slot=lease["samples"],
            vocab_size=terms["vocabulary"],
            prompt_tokens_max=terms["prompt_tokens_max"],
            output_tokens_max=terms["output_tokens_max"],
            names_class=bool(terms.get("class_bounds", {}).get("classes")),
        )
        rows = _read_any_format(data, limits)
    except RemoteError as error:
        return make_unavailable(f"the file does not pass the strict reader: {error}")
    family = open_inline_family(terms["task_set"]) if model is not None else None
    shown = list(islice(rows, first, first + ROLLOUTS_SHOWN))
    token_lists = [tokens for row in shown for tokens in (row.prompt_tokens, row.output_tokens)]
    try:
        # All rows in one round trip to the tokenizer's process.
        texts = model.decode([each.tolist() for each in token_lists]) if model else list(map(_show_tokens, token_lists))
    except LocalError as error:
        texts, family = [f"(cannot be decoded: {error})"] * len(token_lists), None
    return RolloutsView(
        total=len(rows),
        first=first,
        rows=tuple(map(_make_view, shown, texts[::2], texts[1::2], repeat(family))),
        is_text=model is not None,
        problem="",
    )


def open_inline_family(task_set: str) -> TaskFamily | None:
    """A family that grades without a sandbox or dataset; None for others."""
    spec = TaskSetSpec.parse(task_set)
    return open_family(spec) if spec.family in INLINE_FAMILIES else None


def _make_view(row: Rollout, prompt: str, completion: str, family: TaskFamily | None) -> RolloutView:
    grade = family.grade(family.make(row.task), completion) if family and row.task < family.size else None
    return RolloutView(
        slot=row.slot,
        sample=row.sample,
        task=row.task,
        finish="end token" if row.finish is FinishReason.EOS else "length",
        prompt=prompt[:ROLLOUT_CHARS_SHOWN],
        completion=completion[:ROLLOUT_CHARS_SHOWN],
        is_cut=len(completion) > ROLLOUT_CHARS_SHOWN,
        prompt_tokens=len(row.prompt_tokens),
        output_tokens=len(row.output_tokens),
        reward=grade.reward if isinstance(grade, Grade) else None,
        grade=str(grade.reason) if isinstance(grade, Grade) else "",
        logprob_mean=float(row.output_logprobs.mean()),
        proofs=-(-len(row.output_tokens) // TOPLOC_CHUNK_TOKENS),
    )


def _show_tokens(tokens: Any) -> str:
    words = " ".join(map(str, tokens[:TOKENS_SHOWN].tolist()))
    return f"{words} …" if len(tokens) > TOKENS_SHOWN else words
