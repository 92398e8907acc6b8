"""The trainer in a process that can be killed at a chosen place: forked from a server that has torch loaded already.

Nothing is pretended: the child runs the command as a user types it and ends by SIGKILL, before or after the function
that was named has done its work.
"""

import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import prime_trainer.app
from prime_trainer import cli
from support.processes.coordinator_main import PASSWORD


def get_server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(["support.processes.killable_trainer", "transformers.models.qwen2.modeling_qwen2"])
    return context


def run(words: tuple[str, ...], log: Path, fatal: str | None = None) -> None:
    """`fatal` is module:function:before|after:call, the call being the one that is not survived."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(PRIME_PASSWORD=PASSWORD, PRIME_LOG_FORMAT="json")
    if fatal is not None:
        arm(fatal)
    sys.exit(cli.main(list(words)))


def run_rank(words: tuple[str, ...], log: Path, rank: int, size: int, port: int) -> None:
    """The same command as `torchrun` would start it."""
    be_rank(rank, size, port)
    run(words, log)


def be_rank(rank: int, size: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="test",
    )


def arm(fatal: str) -> None:
    place, name, when, call = fatal.split(":")
    module = importlib.import_module(place)
    calls = iter(range(1, int(call) + 1))
    setattr(module, name, deadly(getattr(module, name), lambda: next(calls) == int(call), when))


def deadly(work: Callable[..., Any], is_time: Callable[[], bool], when: str) -> Callable[..., Any]:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if inspect.iscoroutinefunction(work):

        @wraps(work)
        async def watched_coroutine(*args: Any, **named: Any) -> Any:
            is_now = is_time()
            if is_now and when == "before":
                die()
            result = await work(*args, **named)
            if is_now:
                die()
            return result

        return watched_coroutine

    @wraps(work)
    def watched(*args: Any, **named: Any) -> Any:
        is_now = is_time()
        if is_now and when == "before":
            die()
        result = work(*args, **named)
        if is_now:
            die()
        return result

    return watched


assert prime_trainer.app.run_trainer, "loaded before the fork, so that a child starts at once"
