"""A model split over two processes (tensor parallelism) writes and verifies what one process and torch do.

The same pipe and the same checks as in a node. vLLM's start takes seconds for every rank, so only one engine starts in
the default run; SLOW_TESTS=1 runs all pairs, bfloat16 and preemption.
"""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prime_node.engine.child import is_drawn_for_noise
from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.interface import GenerateRequest
from prime_node.engine.measurement import ClaimedRow
from prime_node.engine.process import EngineDied, EngineProcess, build_command, build_environment
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.engine_claims import AUDIT, CHANGED, FLOAT32, SAMPLING, VLLM, make_orders, write
from support.expert_models import make_expert_checkpoint
from support.spliced_weights import join_experts, splice_checkpoint

BF16 = "bfloat16-imitated"
SHAPE = {"heads": 4, "kv_heads": 2, "hidden": 128}
"""vLLM's attention on CPUs wants at least 32 values in a head, and a split needs whole heads."""
needs_vllm = pytest.mark.skipif(not (VLLM / "bin/python").exists(), reason="vLLM is not installed: make .vllm/ready")
slow = pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="starts vLLM many times: SLOW_TESTS=1")


async def start(
    stack: AsyncExitStack, folder: Path, *, ranks: int, precision: str = "float32", engine: EngineKind = EngineKind.VLLM
) -> EngineProcess:
    """`ranks` processes that share a model; torch has one."""
    is_vllm = engine is EngineKind.VLLM
    variables = (f"VLLM_CACHE_ROOT={VLLM / 'cache'}",)
    python = VLLM / "bin/python" if is_vllm else None
    config = EngineConfig(engine=engine, device="cpu", python=python, tensor_parallel=ranks, variables=variables)
    command = list(build_command(config, Precision.FLOAT32))
    command[command.index("--precision") + 1] = precision
    place = folder / f"{engine}-{ranks}-{precision}"
    environment = build_environment(config, place)
    process = await EngineProcess.start(command, environment, place, start_ms=300_000, stall_ms=200_000)
    stack.push_async_callback(process.kill)
    return process


def list_ranks(pid: int) -> list[int]:
    """Processes of vLLM that run a part of the model, by their titles."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            status, title = Path(f"/proc/{name}/stat").read_text(), Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        session = int(status.rpartition(")")[2].split()[3])
        if session == pid and b"Worker" in title:
            found.append(int(name))
    return sorted(found)


async def find_flaws(process: EngineProcess, claims: list[ClaimedRow], tolerance: Tolerance = FLOAT32) -> list[str]:
    rows = await process.check(claims, SAMPLING, AUDIT)
    assert sum(row.tokens for row in rows) == sum(len(claim.sequence.output) for claim in claims)
    return [flaw.text for flaw in weigh_rows(rows, tolerance)[1]]


def get_tokens(claims: list[ClaimedRow]) -> list[list[int]]:
    return [claim.sequence.output.tolist() for claim in claims]


@needs_vllm
async def test_a_split_model_writes_what_torch_writes_and_dies_with_its_rank(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **SHAPE)
    orders = make_orders(12)
    async with AsyncExitStack() as stack:
        split = await start(stack, tmp_path, ranks=2)
        torch = await start(stack, tmp_path, ranks=1, engine=EngineKind.TORCH)
        for process in (split, torch):
            await process.load(checkpoint)
        written, reference = await write(split, orders), await write(torch, orders)
        assert get_tokens(written) == get_tokens(reference)
        assert await find_flaws(torch, written) == []
        assert await find_flaws(split, reference) == []

        ranks = list_ranks(split.pid)
        assert len(ranks) == 2
        job = asyncio.create_task(write(split, make_orders(400)))
        await asyncio.sleep(1)
        os.kill(ranks[1], signal.SIGKILL)
        with pytest.raises(EngineDied, match="a rank of the split model has died"):
            await job
        assert not split.is_alive
        assert list_ranks(split.pid) == []


@slow
@needs_vllm
@pytest.mark.timeout(900)
async def test_one_and_two_ranks_and_torch_verify_each_other_before_and_after_new_weights(tmp_path: Path) -> None:
    first, other = (make_tiny_checkpoint(tmp_path / f"{seed}", seed=seed, **SHAPE) for seed in (0, 1))
    second = splice_checkpoint(tmp_path / "second", first, other, CHANGED)
    orders = make_orders(24)
    async with AsyncExitStack() as stack:
        engines = {
            "torch": await start(stack, tmp_path, ranks=1, engine=EngineKind.TORCH),
            "whole": await start(stack, tmp_path, ranks=1),
            "split": await start(stack, tmp_path, ranks=2),
        }
        tokens: dict[Path, list[list[int]]] = {}
        stale: dict[str, list[ClaimedRow]] = {}
        for checkpoint, changed in ((first, None), (second, CHANGED), (other, None)):
            for process in engines.values():
                await process.load(checkpoint, changed)
            claims = {name: await write(process, orders) for name, process in engines.items()}
            tokens[checkpoint] = get_tokens(claims["split"])
            for writer, written in claims.items():
                assert get_tokens(written) == tokens[checkpoint], writer
                for reader, process in engines.items():
                    assert await find_flaws(process, written) == [], f"{writer} -> {reader}"
            if stale:
                for reader, process in engines.items():
                    assert await find_flaws(process, stale["split"], Tolerance()), f"{reader} takes old weights"
            stale = claims
        assert tokens[first] != tokens[second] != tokens[other]


@slow
@needs_vllm
@pytest.mark.timeout(1500)
async def test_a_mixture_of_experts_is_verified_by_every_engine_before_and_after_new_weights(tmp_path: Path) -> None:
    """Also after a step that joined the tensors of the experts, as a trainer writes them."""
    # Each rank has a half of every expert, which kernels for CPUs pad to 32 values.
    shape = {**SHAPE, "moe_intermediate_size": 128}
    first, other = (make_expert_checkpoint(tmp_path / f"{seed}", seed=seed, **shape) for seed in (0, 1))
    changed = frozenset({"model.layers.0.mlp.experts.3.up_proj.weight", "model.layers.1.mlp.gate.weight"})
    second = splice_checkpoint(tmp_path / "second", first, other, changed)
    joined = join_experts(tmp_path / "joined", other)
    orders = make_orders(24)
    async with AsyncExitStack() as stack:
        engines = {
            "torch": await start(stack, tmp_path, ranks=1, engine=EngineKind.TORCH),
            "whole": await start(stack, tmp_path, ranks=1),
            "split": await start(stack, tmp_path, ranks=2),
        }
        tokens = []
        for checkpoint, names in ((first, None), (second, changed), (joined, None)):
            for process in engines.values():
                await process.load(checkpoint, names)
            claims = {name: await write(process, orders) for name, process in engines.items()}
            tokens.append(get_tokens(claims["torch"]))
            for writer, written in claims.items():
                assert get_tokens(written) == tokens[-1], writer
                for reader, process in engines.items():
                    assert await find_flaws(process, written) == [], f"{writer} -> {reader}"
        assert tokens[0] != tokens[1] != tokens[2]


@slow
@needs_vllm
@pytest.mark.timeout(900)
async def test_in_bfloat16_a_split_model_is_within_the_tolerance_of_every_other_engine(tmp_path: Path) -> None:
    checkpoint = make_tiny_checkpoint(tmp_path / "model", **SHAPE)
    orders = make_orders(24)
    async with AsyncExitStack() as stack:
        engines = [
            await start(stack, tmp_path, ranks=1, engine=EngineKind.TORCH),
            *[await start(stack, tmp_path, ranks=ranks, precision=BF16) for ranks in (1, 2)],
        ]
        for process in engines:
            await process.load(checkpoint)
        for writer in engines:
            written = await write(writer, orders)
            for reader in engines:
                assert await find_flaws(reader, written, Tolerance()) == []
        await check_noise(
            await start(stack, tmp_path, ranks=1, engine=EngineKind.TORCH, precision=BF16),
            engines[1],
            orders,
            checkpoint,
        )


async def check_noise(torch: EngineProcess, vllm: EngineProcess, orders: list[GenerateRequest], folder: Path) -> None:
    """vLLM measures the noise of a drawn sample of the rows, and finds what torch finds in all of them."""
    await torch.load(folder)
    written = await write(torch, orders)
    all_rows, some_rows = await torch.check(written, SAMPLING, AUDIT), await vllm.check(written, SAMPLING, AUDIT)
    drawn = [row.row for row in some_rows if any(span.is_read_twice for span in row.spans)]
    assert drawn == [row.row for row in all_rows if is_drawn_for_noise(AUDIT, row.row)]
    assert 0 < len(drawn) < len(orders)
    for row in drawn:
        for ours, theirs in zip(all_rows[row].spans, some_rows[row].spans, strict=True):
            if ours.is_whole:
                assert theirs.own_mantissa_error_mean == pytest.approx(ours.own_mantissa_error_mean, rel=0.5)
                assert theirs.own_logprob_error_sum == pytest.approx(ours.own_logprob_error_sum, rel=0.5)
                assert theirs.logprob_error_sum == pytest.approx(ours.logprob_error_sum, rel=0.01, abs=1e-4)
