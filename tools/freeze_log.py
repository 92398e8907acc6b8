"""Write the frozen logs of this release: whole logs with every kind of entry, and what they must always add up to.

    make freeze                                    # tests/vectors/logs/<version in pyproject.toml>/
    python tools/freeze_log.py --record RELEASE    # the state digest of an old release's logs in a new snapshot format

`tests/unit/prime_protocol/ledger/test_frozen_logs.py` replays each folder in every test run. A folder is made again
only while its release is the version in pyproject.toml. The facts in `expected.json` never change; a state digest
belongs to a snapshot format.
"""

import argparse
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

from oracle.make_ledger_vectors import summarise, tell, tell_on_chain
from prime_protocol.constants import LOG_ENTRY_BYTES_MAX
from prime_protocol.ledger.replay import ENTRY_RULES, Ledger, replay
from prime_protocol.ledger.snapshots.snapshot import SNAPSHOT_FORMAT, compute_snapshot_digest, encode_snapshot
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_protocol.wire.ids import NetworkId
from support.ledger_network import NETWORK, log_key

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "tests" / "vectors" / "logs"
STORIES = {"embedded": tell, "on_chain": tell_on_chain}
LENGTH_BYTES = 4
FORMAT = 1
"""Of the folder: `<name>.entries.zst` (each leaf after its length in four bytes, big-endian, compressed with zstd),
`<name>.checkpoint` (the signed head over them) and `expected.json`."""
LOG_BYTES_MAX = 64 * 2**20


def read_release() -> str:
    release: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return release


def read_leaves(path: Path) -> list[bytes]:
    """The entries of a frozen log."""
    raw = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=LOG_BYTES_MAX)
    leaves, place = [], 0
    while place < len(raw):
        size = int.from_bytes(raw[place : place + LENGTH_BYTES], "big")
        assert 0 < size <= LOG_ENTRY_BYTES_MAX, f"{path}: a leaf of {size} bytes at {place}"
        leaves.append(raw[place + LENGTH_BYTES : place + LENGTH_BYTES + size])
        place += LENGTH_BYTES + size
    return leaves


def write_leaves(path: Path, leaves: Sequence[bytes]) -> None:
    raw = b"".join(len(leaf).to_bytes(LENGTH_BYTES, "big") + leaf for leaf in leaves)
    path.write_bytes(zstandard.ZstdCompressor(level=19).compress(raw))


def compute_state_digest(ledger: Ledger) -> str:
    return str(compute_snapshot_digest(encode_snapshot(ledger.network, ledger.state)))


def count_kinds(leaves: Sequence[bytes], network: NetworkId) -> dict[str, int]:
    ledger = Ledger(network)
    return dict(sorted(Counter(type(ledger.apply(leaf)).__name__ for leaf in leaves).items()))


def freeze(release: str) -> None:
    folder = LOGS / release
    folder.mkdir(parents=True, exist_ok=True)
    logs: dict[str, Any] = {}
    missing = {kind.__name__ for kind in ENTRY_RULES}
    for name, story in STORIES.items():
        world = story()
        write_leaves(folder / f"{name}.entries.zst", world.leaves)
        head = TreeHead(ORIGIN_PREFIX + NETWORK, world.state.size, world.state.frontier.root())
        (folder / f"{name}.checkpoint").write_bytes(sign_tree_head(head, log_key(world.log_key_name)))
        kinds = count_kinds(world.leaves, NETWORK)
        missing -= kinds.keys()
        logs[name] = {
            "kinds": kinds,
            "facts": summarise(world.ledger),
            "state_digests": {str(SNAPSHOT_FORMAT): compute_state_digest(world.ledger)},
        }
    if missing:
        raise SystemExit(
            f"no frozen log has {', '.join(sorted(missing))}: add them to tests/oracle/make_ledger_vectors.py"
        )
    write_expected(folder, {"format": FORMAT, "release": release, "network": NETWORK, "logs": logs})


def record(release: str) -> None:
    """Add or replace the state digests of today's snapshot format, if the facts are still the same."""
    folder = LOGS / release
    expected = json.loads((folder / "expected.json").read_text())
    for name, log in expected["logs"].items():
        ledger = replay(NetworkId(expected["network"]), read_leaves(folder / f"{name}.entries.zst"))
        if summarise(ledger) != log["facts"]:
            raise SystemExit(
                f"{release}/{name}: the facts differ, so the rules of an old log have changed: repair that"
            )
        log["state_digests"][str(SNAPSHOT_FORMAT)] = compute_state_digest(ledger)
    write_expected(folder, expected)


def write_expected(folder: Path, expected: dict[str, Any]) -> None:
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{folder.relative_to(ROOT)}: {', '.join(expected['logs'])}")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the frozen logs of this release.")
    parser.add_argument(
        "--record", metavar="RELEASE", help="only record the state digests of this release's logs again"
    )
    wanted = parser.parse_args(argv).record
    record(wanted) if wanted else freeze(read_release())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
