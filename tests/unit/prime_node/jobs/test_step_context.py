"""What the work of a step goes by: asked once, fetched by digest, kept while it is in use; and answers graded by it."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost, write_checkpoint
from prime_node.config import NodeRole
from prime_node.jobs.audit import grade_rows
from prime_node.jobs.step_context import CACHE_ENTRIES, LruCache, StepContexts
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import NodeRegistered, Role
from prime_protocol.rollouts.rollout import FinishReason, Rollout
from prime_protocol.tasks.family import Grade, GradeReason, SandboxJob, SandboxOutcome, Task
from prime_protocol.wire.ids import Digest, Sample, Slot, Step
from prime_protocol.wire.messages import CheckpointRef, StepReply, StepRequest
from prime_runtime.http.client import SignedReply
from prime_runtime.http.config import ServerAddress
from support.job_setup import BEACON, KEY, ROOT, RUN, SETUP_TERMS, JobSetup, digest
from support.problem_files import MATH
from support.shard_hosts import change, make_tensors

SERVER = ServerAddress("http://127.0.0.1:1", KEY.node)


class Line:
    """A coordinator that tells of steps and hands out files."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    async def call(
        self, server: ServerAddress, endpoint: Any, message: StepRequest, **how: Any
    ) -> SignedReply[StepReply]:
        self.asked.append(f"step {message.step}")
        root = message.root or ROOT
        weights = CheckpointRef(step=message.step, root=root, manifest=digest("manifest"), beacon=BEACON)
        facts = StepReply(terms=SETUP_TERMS, beacon=BEACON, weights=weights)
        return SignedReply(replace(facts, **self.changes), b"", b"")

    async def get(self, server: ServerAddress, path: str, **how: Any) -> bytes | None:
        self.asked.append(path)
        return self.files.get(path)


class Disk:
    """A fetcher that has every checkpoint: the same one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @asynccontextmanager
    async def hold_checkpoint(self, root: Digest, manifest: Digest | None) -> AsyncIterator[Path]:
        assert manifest == digest("manifest")
        yield self.folder


def make(line: Line, folder: Path) -> StepContexts:
    checkpoint = JobSetup(folder / "scene").checkpoint
    return StepContexts(line, SERVER, RUN, Disk(checkpoint), folder / "datasets")  # type: ignore[arg-type]


async def test_a_step_is_asked_for_once(tmp_path: Path) -> None:
    line = Line()
    contexts = make(line, tmp_path)
    for _ in range(3):
        async with contexts.open(Step(0), ROOT) as context:
            assert (context.beacon, context.terms, context.root) == (BEACON, SETUP_TERMS, ROOT)
            assert context.encode_prompts([5])[5].dtype == np.int32
    assert line.asked == ["step 0"]


async def test_checkpoints_with_the_same_files_share_one_tokenizer_whose_problem_is_told(tmp_path: Path) -> None:
    contexts = StepContexts(Line(), SERVER, RUN, Disk(JobSetup(tmp_path).checkpoint), tmp_path)  # type: ignore[arg-type]
    first = await contexts._open_model(ROOT, tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "next")
    assert await contexts._open_model(digest("next"), tmp_path / "next") is first
    assert (contexts.tokenizer_problem, first.encode_prompts(["1"])) == ("", [[1]])
    pid = first.tokenizer.pid
    assert pid is not None
    contexts.close()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    (tmp_path / "next" / "tokenizer.json").write_text("{}")
    other = await contexts._open_model(digest("other"), tmp_path / "next")
    with pytest.raises(LocalError):
        other.encode_prompts(["1"])
    assert "cannot be read" in contexts.tokenizer_problem


async def test_a_coordinator_that_tells_of_another_checkpoint_is_not_believed(tmp_path: Path) -> None:
    other = CheckpointRef(step=Step(0), root=digest("other"), manifest=digest("manifest"), beacon=BEACON)
    with pytest.raises(RemoteError, match="asked for was"):
        async with make(Line(weights=other), tmp_path).open(Step(0), ROOT):
            pass
    with pytest.raises(LocalError, match="no beacon yet"):
        async with make(Line(beacon=None), tmp_path).open(Step(0), ROOT):
            pass


async def test_a_problem_file_is_fetched_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    name = Digest(sha256(MATH).digest())
    line = Line(terms=replace(SETUP_TERMS, task_set=f"math-answer?dataset={name}"))
    with pytest.raises(LocalError, match="the coordinator has no /datasets/"):
        async with make(line, tmp_path).open(Step(0), ROOT):
            pass
    line.files[f"/datasets/{name}"] = b"something else"
    with pytest.raises(RemoteError, match="has another digest than its name says"):
        async with make(line, tmp_path).open(Step(0), ROOT):
            pass
    line.files[f"/datasets/{name}"] = MATH
    async with make(line, tmp_path).open(Step(0), ROOT) as context:
        assert context.family.name == "math-answer"
    fetched = line.asked.count(f"/datasets/{name}")
    async with make(line, tmp_path).open(Step(0), ROOT):
        assert line.asked.count(f"/datasets/{name}") == fetched, "it is on this disk"
    (tmp_path / "datasets" / name.hex()).write_bytes(b"damaged")
    async with make(line, tmp_path).open(Step(0), ROOT):
        assert line.asked.count(f"/datasets/{name}") == fetched + 1


def test_only_the_last_few_are_remembered() -> None:
    recent: LruCache[int, str] = LruCache(CACHE_ENTRIES)
    for number in range(CACHE_ENTRIES + 2):
        recent.put(number, str(number))
        recent.get(0)
    assert [recent.get(number) is None for number in range(CACHE_ENTRIES + 2)].count(True) == 2
    assert recent.get(0) == "0", "what is used stays"


async def test_a_checkpoint_stays_while_somebody_works_with_it(tmp_path: Path) -> None:
    origin, node = ShardHost(tmp_path, "origin", key=TRAINER), ShardHost(tmp_path, "node")
    tensors, roots = make_tensors(1, tensors=1, size=100_000), []
    for step in range(4):
        (signed,) = origin.publish(write_checkpoint(tmp_path / f"c{step}", tensors), step)
        stock = origin.store.shard_sets[signed.digest]
        node.store.add(signed, {file.name: stock.folder / file.name for file in signed.manifest.files})
        roots.append(signed.root)
        tensors = change(tensors, step + 2)
    async with node.fetcher.hold_checkpoint(roots[0]) as folder:
        for root in roots[1:]:
            await node.fetcher.ensure_checkpoint(root)
        assert (folder / "model.safetensors").exists()
        assert set(node.store.checkpoints()) == {roots[0], roots[2], roots[3]}
    await node.fetcher.ensure_checkpoint(roots[3])
    assert set(node.store.checkpoints()) == {roots[2], roots[3]}, "then it goes as any other"
    await node.fetcher.close()
    await origin.fetcher.close()


# --- Grades ---------------------------------------------------------------------------------------------------------


class Quiz:
    """Some answers are graded at once, others by a job."""

    name, size = "quiz", 10

    def make(self, index: int) -> Task:
        return Task(self.name, index, "?", "")

    def grade(self, task: Task, completion: str) -> Grade | SandboxJob:
        return Grade(1.0, GradeReason.RIGHT) if task.index == 0 else SandboxJob(completion, b"")

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        return Grade(0.0, GradeReason.CRASHED) if task.index == 1 else Grade(0.5, GradeReason.PARTLY)


class Cell:
    """A sandbox that notes what it was given."""

    def __init__(self) -> None:
        self.sources: list[str] = []

    async def run(self, job: SandboxJob) -> Any:
        self.sources.append(job.source)


async def test_answers_are_graded_with_their_end_token_and_jobs_in_the_sandbox(tmp_path: Path) -> None:
    context = replace(JobSetup(tmp_path).context, family=Quiz())
    tokens = np.array([1, 2, 3, 12], np.int32)
    rows = [
        Rollout(
            slot=Slot(0),
            sample=Sample(0),
            task=task,
            temperature=1.0,
            target_length=None,
            finish=FinishReason.EOS,
            prompt_tokens=tokens,
            output_tokens=tokens,
            output_logprobs=np.zeros(4, np.float32),
            proofs=b"",
        )
        for task in range(3)
    ]
    cell = Cell()
    rewards = await grade_rows(rows, context, cell)  # type: ignore[arg-type]
    assert cell.sources == ["123$", "123$"]
    assert (rewards.mean, rewards.right, rewards.machine_dependent) == (0.5, 1, 1)


def test_a_node_of_both_roles_registers_both_in_the_logs_order() -> None:
    assert NodeRole.BOTH.log_roles == (Role.VALIDATOR, Role.WORKER)
    for role in NodeRole:
        NodeRegistered(roles=role.log_roles, hardware="")
