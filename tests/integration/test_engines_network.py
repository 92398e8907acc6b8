"""Torch and vLLM in one network, all real processes: workers with either engine, and validators with either engine.

Every submission is judged by both validators, so one step shows torch by torch, torch by vLLM, vLLM by torch and vLLM
by vLLM. Four engines on two cores take minutes: it runs only when asked for, with SLOW_TESTS=1.
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from support.processes.nodes import Network, Node, running_network

VLLM = Path(__file__).parents[2] / ".vllm/bin/python"
WAIT_S = 900.0
SLOTS = 8
MODEL = {"hidden": 128, "heads": 4, "kv_heads": 2}
"""vLLM's attention for CPUs knows no heads narrower than 32."""
STEADY = ("VLLM_CPU_KVCACHE_SPACE=1", "VLLM_CPU_OMP_THREADS_BIND=nobind", "VLLM_NO_USAGE_STATS=1")


async def start(network: Network, name: str, role: str, engine: str) -> Node:
    flags = ("--engine-start-ms", "900000", "--engine-stall-ms", "600000")
    if engine == "vllm":
        flags += ("--engine-python", str(VLLM))
        flags += tuple(word for variable in STEADY for word in ("--engine-variables", variable))
    return await network.node(f"{name}-{engine}", role, *flags, engine=engine)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not os.environ.get("SLOW_TESTS"), reason="takes minutes: SLOW_TESTS=1")
@pytest.mark.skipif(not VLLM.exists(), reason="vLLM is not installed: make .vllm/ready")
async def test_what_one_engine_makes_the_other_accepts_through_the_whole_network(tmp_path: Path) -> None:
    terms = {"quorum": 2, "slots_per_step": SLOTS, "verdict_ms": 1_800_000}
    async with running_network(tmp_path, model=MODEL, **terms) as network:
        nodes = {
            (role, engine): await start(network, role, role, engine)
            for role in ("worker", "validator")
            for engine in ("torch", "vllm")
        }
        makers = {str(node.node): engine for (role, engine), node in nodes.items() if role == "worker"}
        judges = {str(node.node): engine for (role, engine), node in nodes.items() if role == "validator"}
        began = time.monotonic()
        found: Counter[tuple[str, str, str]] = Counter()
        while len({pair[:2] for pair in found}) < 4:
            assert time.monotonic() - began < WAIT_S, "\n".join(node.command.tail for node in nodes.values())
            await asyncio.sleep(1)
            found = await count_verdicts(network, makers, judges)
        print(f"\nafter {time.monotonic() - began:.0f} s, verdicts by (made with, judged with, outcome):")
        for pair, count in sorted(found.items()):
            print("   ", *pair, count)
        assert {outcome for _, _, outcome in found} == {"accept"}


async def count_verdicts(
    network: Network, makers: dict[str, str], judges: dict[str, str]
) -> Counter[tuple[str, str, str]]:
    async with network.api() as api:
        await api.wait_for_index()
        rows = (await api.get("/submissions", limit="200"))["submissions"]["rows"]
        made = {row["submission"]: makers[row["node"]] for row in rows}
        verdicts = (await api.get("/verdicts", limit="200"))["rows"]
    return Counter((made[row["submission"]], judges[row["validator"]], row["outcome"]) for row in verdicts)
