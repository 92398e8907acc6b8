"""Time to the last of sixteen nodes, each behind 100 Mbit/s up and down like the origin, in network namespaces.

    python bench/shaped_links.py [--nodes 16] [--mbit 100] [--mib 960] [--shard-mib 2]

Needs root and iproute2. The least possible is size/bandwidth: the origin has to send every byte once. `ratio` is what
it took, less one shard's time for each step of depth, over that. Above 1.3 the command fails.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from prime_lab.attacks.relay_attacks import write_checkpoint
from support import netns
from support.shaped_swarm import run_broadcast
from support.shard_hosts import make_tensors

RATIO_MAX = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--mbit", type=int, default=100, help="of every line, up and down (default: 100)")
    parser.add_argument(
        "--mib", type=int, default=960, help="size of the checkpoint, 18 times which fits into memory (default: 960)"
    )
    parser.add_argument("--shard-mib", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse_args()
    if not netns.is_possible():
        raise SystemExit("network namespaces with shaped links need root and iproute2")
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="shaped-links-") as name:
        folder = Path(name)
        checkpoint = write_checkpoint(folder / "step0", make_tensors(1, size=args.mib * 2**18))
        shard_bytes = args.shard_mib * 2**20
        outcome = run_broadcast(folder, checkpoint, nodes=args.nodes, mbit=args.mbit, shard_bytes=shard_bytes)
    least_s = args.mib * 2**20 * 8 / (args.mbit * 1e6)
    shard_s = shard_bytes * 8 / (args.mbit * 1e6)
    ratio = (outcome.seconds - outcome.depth * shard_s) / least_s
    print(f"{args.nodes} nodes, {args.mbit} Mbit/s, {args.mib} MiB in {outcome.shards} shards")
    print(f"least possible, size/bandwidth {least_s:8.2f} s")
    print(f"time to the last node          {outcome.seconds:8.2f} s, depth {outcome.depth}")
    print(f"copies sent by the origin      {outcome.sent_by_origin / outcome.shards:8.2f}")
    print(f"CPU of all nodes               {outcome.cpu_s:8.2f} s")
    print(f"RESULT last_s={outcome.seconds:.2f} least_s={least_s:.2f} depth={outcome.depth} ratio={ratio:.3f}")
    if ratio > RATIO_MAX:
        raise SystemExit(f"the ratio is above {RATIO_MAX}")


if __name__ == "__main__":
    main()
