"""What one engine writes, every other one verifies: torch and vLLM, float32 and bfloat16, each in its own process.

The same pipe and the same checks as in a node. One test, as vLLM takes seconds to start.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from prime_node.engine.config import EngineConfig, EngineKind
from prime_node.engine.measurement import ClaimedRow
from prime_node.engine.process import EngineProcess, build_command, build_environment
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.engine_claims import AUDIT, CHANGED, FLOAT32, SAMPLING, VLLM, make_orders, write
from support.spliced_weights import splice_checkpoint


@dataclass(frozen=True)
class Kind:
    """One way of running the model."""

    engine: EngineKind
    precision: str

    def config(self) -> EngineConfig:
        python = VLLM / "bin/python" if self.engine is EngineKind.VLLM else None
        variables = (f"VLLM_CACHE_ROOT={VLLM / 'cache'}",)
        return EngineConfig(engine=self.engine, device="cpu", python=python, variables=variables)

    def command(self) -> list[str]:
        words = list(build_command(self.config(), Precision.FLOAT32))
        words[words.index("--precision") + 1] = self.precision
        return words


TORCH = Kind(EngineKind.TORCH, "float32")
TORCH_BF16 = Kind(EngineKind.TORCH, "bfloat16-imitated")
VLLM_KIND = Kind(EngineKind.VLLM, "float32")
KINDS = (TORCH, TORCH_BF16, VLLM_KIND)


async def start(kind: Kind, folder: Path, stack: AsyncExitStack) -> EngineProcess:
    place = folder / f"{kind.engine}-{kind.precision}"
    environment = build_environment(kind.config(), place)
    process = await EngineProcess.start(kind.command(), environment, place, start_ms=200_000, stall_ms=100_000)
    stack.push_async_callback(process.close)
    return process


@pytest.mark.skipif(not (VLLM / "bin/python").exists(), reason="vLLM is not installed: make .vllm/ready")
async def test_what_one_engine_writes_every_other_one_verifies_before_and_after_new_weights(tmp_path: Path) -> None:
    first, other = (make_tiny_checkpoint(tmp_path / f"{seed}", seed=seed, heads=2, kv_heads=1) for seed in (0, 1))
    second = splice_checkpoint(tmp_path / "second", first, other, CHANGED)
    orders = make_orders(24)
    async with AsyncExitStack() as stack:
        processes = {kind: await start(kind, tmp_path, stack) for kind in KINDS}
        for process in processes.values():
            await process.load(first)
        stale = {kind: await write(process, orders) for kind, process in processes.items()}
        await check_all_pairs(processes, stale)
        for process in processes.values():
            await process.load(second, CHANGED)
        await check_all_pairs(processes, {kind: await write(process, orders) for kind, process in processes.items()})
        for writer in KINDS:
            for reader in (TORCH, VLLM_KIND):
                rows = await processes[reader].check(stale[writer], SAMPLING, AUDIT)
                assert weigh_rows(rows, Tolerance())[1], f"{reader} takes what {writer} wrote with the old weights"


async def check_all_pairs(processes: dict[Kind, EngineProcess], claims: dict[Kind, list[ClaimedRow]]) -> None:
    for reader, process in processes.items():
        for writer in KINDS:
            rows = await process.check(claims[writer], SAMPLING, AUDIT)
            is_exact = TORCH_BF16 not in (writer, reader)
            flaws = weigh_rows(rows, FLOAT32 if is_exact else Tolerance())[1]
            assert not flaws, f"{writer} -> {reader}: {flaws[0].text}"
            assert sum(row.tokens for row in rows) == sum(len(claim.sequence.output) for claim in claims[writer])
