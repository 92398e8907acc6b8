"""The process that keeps an index up with a log: `python -m prime_explorer.follow`. It ends when its input does.

A process of its own, because folding takes the processor for as long as there is something to fold, and the one that
serves pages, or the coordinator's, must answer meanwhile. It only reads the mirror and only writes the index.
"""

import argparse
import logging
import os
import sys
import threading
from pathlib import Path

from prime_explorer.constants import FETCH_MS, FOLLOW_MS
from prime_explorer.fetching import Fetcher
from prime_explorer.following import Follower
from prime_explorer.index import Index
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.note import VerifierKey
from prime_runtime.clock import SystemClock
from prime_runtime.logs import LogConfig, set_up_logs
from prime_runtime.snapshots import code_digest

log = logging.getLogger(__name__)
NICENESS = 10
"""Whoever answers somebody goes first."""
TROUBLES_MAX = 5
"""Times in a row that a file may be missing: a mirror that is being written changes under its reader."""


def main(argv: list[str] | None = None) -> int:
    """0: the input ended, 1: this cannot go on."""
    args = parse_args(argv)
    os.nice(NICENESS)
    set_up_logs(LogConfig(), stream=sys.stderr, secrets=[])
    stop = threading.Event()
    threading.Thread(target=_watch_input, args=(stop,), daemon=True).start()
    try:
        follow(args.mirror, args.folder, args.source, VerifierKey.parse(args.key) if args.key else None, stop)
    except LocalError as error:
        log.error("the index cannot be kept: %s", error)
        return 1
    return 0


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m prime_explorer.follow", description=__doc__)
    parser.add_argument("--mirror", type=Path, required=True, help="folder with `checkpoint` and `tile/`")
    parser.add_argument("--folder", type=Path, required=True, help="where the index is")
    parser.add_argument("--source", help="URL of the mirror that the folder is a copy of")
    parser.add_argument("--key", help="the log's verifier key")
    return parser.parse_args(argv)


def _watch_input(stop: threading.Event) -> None:
    """Whoever started this holds the other end, and lets go of it even when killed."""
    sys.stdin.buffer.read()
    stop.set()


def follow(mirror: Path, folder: Path, source: str | None, key: VerifierKey | None, stop: threading.Event) -> None:
    """Until told to stop."""
    clock = SystemClock()
    fetcher = Fetcher(source, mirror) if source else None
    index = Index.open(folder / "index.db", code_digest().hex()[:16])
    follower = Follower(mirror, index, snapshot=folder / "state.snapshot", key=key)
    troubles = 0
    try:
        while not stop.is_set():
            try:
                if fetcher is not None:
                    fetcher.fetch(lambda: not stop.is_set())
                follower.advance(clock.now_ms(), lambda: not stop.is_set())
                if troubles:
                    index.put([], trouble="")
                troubles = 0
            except RemoteError as error:
                log.error("the log does not hold: %s", error)
                index.put([], problem=str(error))
                if fetcher is not None:
                    fetcher.forget()
            except LocalError as error:
                troubles += 1
                if troubles >= TROUBLES_MAX:
                    index.put([], trouble=str(error))
            stop.wait((FETCH_MS if fetcher or troubles else FOLLOW_MS) / 1000)
    finally:
        follower.close()


if __name__ == "__main__":
    sys.exit(main())
