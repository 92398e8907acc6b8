"""Time to the last of sixteen nodes, each behind 100 Mbit/s up and down like the origin, in network namespaces.

    python bench/shaped_links.py [--nodes 16] [--mbit 100] [--mib 960] [--shard-mib 2] [--behind-nat 8]

Needs root and iproute2, and iptables for nodes behind routers. The lower bound is size over bandwidth, because the
origin has to send every byte once. `ratio` is the time taken, less the time of one shard for each level of depth, over
that bound. Above 1.3, or 1.5 with nodes behind routers, the command fails. Nodes behind routers serve by lanes and by
connections through both routers; each has a router of its own.
"""

import tempfile
from pathlib import Path

from benchmark import BenchmarkParser, print_result, stop_without

from prime_lab.attacks.relay_attacks import write_checkpoint
from support import netns, netns_nat
from support.shaped_swarm import run_broadcast_behind_routers
from support.shard_hosts import make_tensors

RATIO_MAX, RATIO_MAX_NAT = 1.3, 1.5


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--nodes", 16, 2)
    parser.add_size("--mbit", 100, 1_000, "of every line, up and down")
    parser.add_size("--mib", 960, 4, "size of the checkpoint; 18 times that must fit into memory")
    parser.add_size("--shard-mib", 2, 1)
    parser.add_size("--behind-nat", 0, 1, "so many of the nodes are behind routers")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    args = parser.parse()
    if not netns.is_possible() or (args.behind_nat and not netns_nat.is_possible()):
        stop_without("network namespaces with shaped links need root, iproute2 and iptables", smoke=args.smoke)
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="shaped-links-") as name:
        folder = Path(name)
        checkpoint = write_checkpoint(folder / "step0", make_tensors(1, size=args.mib * 2**18))
        shard_bytes = args.shard_mib * 2**20
        outcome = run_broadcast_behind_routers(
            folder,
            checkpoint,
            public=args.nodes - args.behind_nat,
            routers=args.behind_nat,
            behind_each=1,
            mbit=args.mbit,
            shard_bytes=shard_bytes,
        )
    least_s = args.mib * 2**20 * 8 / (args.mbit * 1e6)
    shard_s = shard_bytes * 8 / (args.mbit * 1e6)
    ratio = (outcome.seconds - outcome.depth * shard_s) / least_s
    print(f"{args.nodes} nodes, {args.mbit} Mbit/s, {args.mib} MiB in {outcome.shards} shards")
    print(f"least possible, size/bandwidth {least_s:8.2f} s")
    print(f"time to the last node          {outcome.seconds:8.2f} s, depth {outcome.depth}")
    print(f"copies sent by the origin      {outcome.sent_by_origin / outcome.shards:8.2f}")
    print(f"copies sent from behind routers{outcome.sent_by_private / outcome.shards:7.2f}")
    print(f"CPU of all nodes               {outcome.cpu_s:8.2f} s")
    print_result(last_s=f"{outcome.seconds:.2f}", least_s=f"{least_s:.2f}", depth=outcome.depth, ratio=f"{ratio:.3f}")
    limit = RATIO_MAX_NAT if args.behind_nat else RATIO_MAX
    if ratio > limit and not args.smoke:
        raise SystemExit(f"the ratio is above {limit}")


if __name__ == "__main__":
    main()
