"""The coordinator is gone: nodes that know each other, or one peer, pass weights on. All are real processes."""

from pathlib import Path

from support.processes.coordinator import key_of
from support.processes.swarm import HERE, make_checkpoint, running_swarm

P2P = ("--p2p-listen", HERE)


async def test_without_a_coordinator_weights_still_reach_a_restarted_node_and_a_late_joiner(tmp_path: Path) -> None:
    async with running_swarm(tmp_path, p2p=True) as swarm:
        published = await swarm.publish(make_checkpoint(tmp_path / "step-0", seed=0), 0)
        await swarm.origin(*P2P)
        first, second = await swarm.relay("relay-1", *P2P), await swarm.relay("relay-2", *P2P)
        for relay in (first, second):
            await relay.until_held(published.root)
            # The coordinator, the origin and the other relay; two of them stay.
            await relay.until(lambda status: status["p2p"]["connected"] >= 3, "peers")
        (address,) = first.last["p2p"]["addresses"]
        assert await second.command.stop() == 0, second.command.tail
        await swarm.coordinator.kill()

        late = await swarm.relay("relay-3", *P2P, "--p2p-bootstrap", address, "--trainer", str(key_of("trainer").node))
        status = await late.until_held(published.root)
        assert not status["coordinator"]["is_reachable"]
        assert status["p2p"]["connected"] >= 1

        for path in sorted((second.folder / "weights").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        await second.command.start()
        status = await second.until_held(published.root)
        assert not status["coordinator"]["is_reachable"], "it found its peers of yesterday"
        await first.until(lambda status: status["heads"]["compared"] > 0, "heads travel on")
