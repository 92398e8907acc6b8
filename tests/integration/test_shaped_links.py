"""A swarm behind real, shaped links in network namespaces. How fast it is, bench/shaped_links.py measures."""

from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import write_checkpoint
from support import netns, netns_nat
from support.shaped_swarm import run_broadcast, run_broadcast_behind_routers
from support.shard_hosts import make_tensors


@pytest.mark.skipif(not netns.is_possible(), reason="network namespaces with shaped links need root and iproute2")
def test_behind_slow_lines_nodes_get_most_of_the_weights_from_each_other(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "step0", make_tensors(1, size=4 * 2**20))
    outcome = run_broadcast(tmp_path, checkpoint, nodes=6, mbit=50, shard_bytes=2**18)
    print(f"\n{outcome}")
    assert outcome.sent_by_origin < 3 * outcome.shards, "six nodes took less than three copies from the origin"


@pytest.mark.skipif(
    not netns_nat.is_possible(), reason="routers in network namespaces need root, iproute2 and iptables"
)
def test_six_nodes_behind_two_routers_send_each_other_most_of_the_weights(tmp_path: Path) -> None:
    """With one public relay. They could send as much as their lines carry in the time that it takes. Then the origin
    dies, and one more node behind a router, which knows the relay only, gets the weights all the same."""
    mbit = 20
    checkpoint = write_checkpoint(tmp_path / "step0", make_tensors(1, size=3 * 2**20))
    outcome = run_broadcast_behind_routers(
        tmp_path, checkpoint, public=1, routers=2, behind_each=3, mbit=mbit, shard_bytes=2**17, late=1
    )
    sent_bytes = outcome.sent_by_private / outcome.shards * 12 * 2**20
    could_bytes = 6 * outcome.seconds * mbit * 1e6 / 8
    print(f"\n{outcome}: {sent_bytes / could_bytes:.0%} of what their lines carry")
    assert outcome.connected > 0, "no connection through both routers"
    assert sent_bytes > 0.3 * could_bytes
