"""Weights from a trainer to relays, all real processes: published, announced, fetched, held bit-exact, and told so."""

import json
from pathlib import Path

from prime_coordinator.config import OriginConfig
from support.processes.coordinator import RUN, key_of
from support.processes.postgres import free_port
from support.processes.swarm import (
    ANY_URL,
    HERE,
    Command,
    digests_of,
    make_checkpoint,
    run_command,
    running_swarm,
    until,
)

P2P = ("--p2p-listen", HERE)
OFF = ("--p2p-enabled", "off")


async def test_relays_with_and_without_libp2p_hold_what_was_published_bit_exact(tmp_path: Path) -> None:
    async with running_swarm(tmp_path, p2p=True) as swarm:
        first = make_checkpoint(tmp_path / "step-0", seed=0)
        published = await swarm.publish(first, 0)
        again = await swarm.publish(first, 0)
        assert again == published, "the same command publishes nothing twice"

        origin = await swarm.origin(*P2P)
        gossiping, plain = await swarm.relay("relay-1", *P2P), await swarm.relay("relay-2", *OFF)
        for relay in (gossiping, plain):
            status = await relay.until_held(published.root, "keyframe")
            manifest = published.manifests["keyframe"]
            assert digests_of(relay.transported(manifest)) == digests_of(first)
            assert (status["node"], status["role"], status["run"]) == (str(relay.node), "relay", RUN)
            await relay.until(lambda status: status["coordinator"]["is_reachable"], "a beat that was answered")

        second = make_checkpoint(tmp_path / "step-1", seed=1, changed=0.01)
        delta = await swarm.publish(second, 1, "--delta")
        assert set(delta.manifests) == {"delta"}
        held = [await relay.until_held(delta.root, "delta") for relay in (gossiping, plain)]
        rows = [status["weights"]["held"] for status in held]
        assert rows[0] == rows[1], "equal members"
        shares = [row["total_bytes"] for row in rows[0]]
        assert min(shares) < 0.1 * max(shares), "only the change travelled"
        files = [
            {path.name: path.read_bytes() for path in relay.transported(delta.manifests["delta"]).iterdir()}
            for relay in (gossiping, plain)
        ]
        assert files[0] == files[1]

        status = await gossiping.until(lambda status: status["p2p"]["peers"] > 0, "a peer")
        assert status["p2p"]["is_on"]
        assert held[1]["p2p"]["text"].startswith("off: p2p.enabled is off; gossip comes from the coordinator")
        for relay in (gossiping, plain):
            status = await relay.until(lambda status: status["heads"]["compared"] > 0, "a head of another that fits")
            assert status["heads"]["forks"] == []
        code, text = await run_command("prime-node", "status", "--json", "--folder", str(plain.folder))
        assert (code, json.loads(text)["weights"]["held"]) == (0, rows[1]), "the command says the same"
        for command in (gossiping.command, plain.command, origin):
            assert await command.stop() == 0, command.tail


async def test_a_relay_whose_gossip_reaches_nobody_says_so_and_is_a_full_member(tmp_path: Path) -> None:
    async with running_swarm(tmp_path) as swarm:
        published = await swarm.publish(make_checkpoint(tmp_path / "step-0", seed=0), 0)
        await swarm.origin()
        closed = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/{key_of('nobody').peer_id()}"
        relay = await swarm.relay("relay-1", *P2P, "--p2p-bootstrap", closed)
        await relay.until_held(published.root)
        status = await relay.until(lambda status: status["p2p"]["is_on"], "gossip")
        told = status["p2p"]
        assert told["text"] == "on, but reaches no peer: gossip comes from the coordinator over HTTP"
        assert told["is_running"]
        assert (told["connected"], told["restarts"], told["inbox_dropped"], told["last_error"]) == (0, 0, 0, "")
        code, text = await run_command("prime-node", "status", "--folder", str(relay.folder))
        assert (code, "on, but reaches no peer" in text) == (0, True), text
        assert await relay.command.stop() == 0, relay.command.tail


async def test_a_killed_relay_goes_on_where_it_was_and_a_second_one_in_its_folder_is_refused(tmp_path: Path) -> None:
    async with running_swarm(tmp_path) as swarm:
        checkpoint = make_checkpoint(tmp_path / "step-0", seed=0)
        published = await swarm.publish(checkpoint, 0)
        origin = await swarm.origin("--upload-bytes-per-s", "100000")
        relay = await swarm.relay("relay-1")
        await relay.until(lambda status: True, "a start")
        code, text = await run_command("prime-node", "start", "--folder", str(relay.folder))
        assert (code, f"another node runs in {relay.folder}" in text) == (1, True), text

        def is_halfway() -> bool:
            folder = relay.transported(published.manifests["keyframe"])
            return (folder / ".held").exists() and int.from_bytes((folder / ".held").read_bytes()).bit_count() > 3

        await until(is_halfway, "a few shards", lambda: relay.command.tail)
        await relay.command.kill()
        assert (await run_command("prime-node", "status", "--folder", str(relay.folder)))[0] == 4
        await relay.command.start()
        await relay.until_held(published.root)
        assert digests_of(relay.transported(published.manifests["keyframe"])) == digests_of(checkpoint)
        assert await origin.stop() == 0
        sent = int(
            next(line for line in origin.lines if "shards were sent" in line).split(" shards were sent")[0].split()[-1]
        )
        total = sum(len((tmp_path / "step-0" / name).read_bytes()) // 16_384 + 1 for name in digests_of(checkpoint))
        assert sent <= total + 6, "what was there was not fetched again"
        code, text = await run_command("prime-node", "stop", "--folder", str(relay.folder))
        assert (code, text) == (0, "stopped")
        assert await relay.command.finish() == 0


async def test_what_a_relay_sent_before_a_restart_counts_for_its_cap(tmp_path: Path) -> None:
    async with running_swarm(tmp_path) as swarm:
        published = await swarm.publish(make_checkpoint(tmp_path / "step-0", seed=0), 0)
        origin = await swarm.origin()
        first = await swarm.relay("relay-1", "--upload-bytes-per-day", "1000000000")
        await first.until_held(published.root)
        assert await origin.stop() == 0
        second = await swarm.relay("relay-2")
        await second.until_held(published.root)
        before = (await first.until(lambda status: status["upload"]["bytes_today"] > 0, "an upload"))["upload"]
        assert await first.command.stop() == 0, first.command.tail
        await first.command.start()
        after = (await first.until(lambda status: True, "a start"))["upload"]
        assert (after["sent_bytes"], after["bytes_today"] >= before["bytes_today"]) == (0, True)


async def test_a_new_user_gives_a_url_once_and_then_nothing(tmp_path: Path) -> None:
    async with running_swarm(tmp_path) as swarm:
        folder = tmp_path / "node"
        alone = ("prime-node", "start", "--folder", str(folder))
        code, text = await run_command(*alone)
        assert (code, "no coordinator is set" in text) == (1, True), text
        command = Command((*alone, "--role", "relay", "--coordinator", swarm.coordinator.server.url))
        command.variables["PRIME_PASSWORD"] = ""
        await command.start()
        await until(lambda: any("outbound only" in line for line in command.lines), "a start", lambda: command.tail)
        said = "\n".join(command.lines)
        assert f"network testnet, run {RUN}" in said
        assert str(swarm.coordinator.node) in said
        assert "prime-node keys backup" in said
        for name in ("key.json", "password", "config.toml", "node.log"):
            assert (folder / name).stat().st_mode & 0o077 == 0, name
        code, text = await run_command("prime-node", "status", "--folder", str(folder))
        assert code == 0
        assert "outbound only" in text
        assert await command.stop() == 0, command.tail
        again = Command(alone, variables={"PRIME_PASSWORD": ""})
        await again.start()
        await until(lambda: any("outbound only" in line for line in again.lines), "a start", lambda: again.tail)
        assert "created its key" not in "\n".join(again.lines)
        assert await again.stop() == 0


async def test_the_coordinators_host_can_be_the_origin_and_a_relay_outlives_it(tmp_path: Path) -> None:
    async with running_swarm(
        tmp_path, origin=OriginConfig(folder=tmp_path / "store", run=RUN, urls=(ANY_URL,))
    ) as swarm:
        published = await swarm.publish(make_checkpoint(tmp_path / "step-0", seed=0), 0)
        first = await swarm.relay("relay-1")
        await first.until_held(published.root)
        status = await first.until(lambda status: not status["weights"]["transfers"], "the end of the transfer")
        assert status["serving"]["depth"] == 1

        await swarm.coordinator.kill()
        await first.until(lambda status: not status["coordinator"]["is_reachable"], "a beat without an answer")
        assert first.command.is_running, "it serves on while the coordinator is away"
