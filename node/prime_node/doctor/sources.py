"""Tries those who serve a run's weights: can they be reached from here, and how fast does a shard or two arrive."""

import asyncio
import random
import secrets
from dataclasses import replace

from prime_node.config import NodeConfig
from prime_node.doctor.facts import SourceFacts
from prime_node.shardcast.link import LinkBroken
from prime_node.shardcast.links import Links
from prime_protocol.constants import FRAME_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import Digest, NodeId
from prime_protocol.manifest import Kind, ShardEntry
from prime_protocol.signed_manifest import open_manifest
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http_client import open_client
from prime_runtime.records_client import RecordsClient
from prime_runtime.shardcast.directory import Directory, Server

SERVERS_TRIED_MAX = 3
SERVER_S = 10
"""Time for one server, manifest and shards together."""
SHARDS_BYTES_MAX = 16 * 2**20
"""Of one server: about two shards of the usual size."""


async def examine_sources(config: NodeConfig, clock: Clock) -> SourceFacts:
    """With a key drawn for this question alone: anybody may ask."""
    directory = Directory()
    key = WalletKey.from_secret(secrets.token_bytes(32))
    try:
        async with open_client(
            key=key,
            network=config.network_id,
            clock=clock,
            dice=random.Random(),
            limits=config.client,
            authority=config.authority,
        ) as client:
            guard = GossipGuard(config.network_id, is_trainer=lambda run, node: node == records.trainer)
            records = RecordsClient(
                client,
                config.server,
                network=config.network_id,
                run=config.run_id,
                clock=clock,
                guard=guard,
                hear=directory.learn,
            )
            await records.ask()
    except (LocalError, RemoteError) as error:
        return SourceFacts(servers=0, reached=0, model_bytes=None, problem=str(error))
    assert records.trainer is not None, "an answer names the trainer"
    return await _try_servers(config, directory, records.trainer, clock)


async def _try_servers(config: NodeConfig, directory: Directory, trainer: NodeId, clock: Clock) -> SourceFacts:
    keyframes = [each for each in directory.announced() if each.kind is Kind.KEYFRAME]
    served = directory.served()
    facts = SourceFacts(
        servers=len(directory), reached=0, model_bytes=keyframes[0].transport_bytes if keyframes else None
    )
    wanted = next((each.manifest for each in keyframes if each.manifest in served), served[0] if served else None)
    if wanted is None:
        return replace(facts, problem="nobody serves weights of this run just now")
    links = Links(allow_private=config.fetches_private)
    servers = sorted(directory.servers(wanted), key=lambda each: -each.serving.slots_free)[:SERVERS_TRIED_MAX]
    try:
        for server in servers:
            facts = await _try_server(config, links, server, wanted, trainer, facts, clock)
    finally:
        await links.close()
    return facts


async def _try_server(
    config: NodeConfig,
    links: Links,
    server: Server,
    wanted: Digest,
    trainer: NodeId,
    facts: SourceFacts,
    clock: Clock,
) -> SourceFacts:
    """The facts with what this server added to them."""
    received, began_ms = 0, clock.monotonic_ms()
    try:
        async with asyncio.timeout(SERVER_S), links.borrow(server.serving.urls) as link:
            answer = await link.get(f"/manifests/{wanted}", {}, body_bytes_max=FRAME_BYTES_MAX)
            facts = replace(facts, reached=facts.reached + 1)
            signed = open_manifest(answer.body, network=config.network_id, run=config.run_id, trainer=trainer)
            began_ms = clock.monotonic_ms()
            for shard in choose_shards(signed.manifest.shards):
                answer = await link.get(f"/shards/{shard.digest}", {}, body_bytes_max=shard.length)
                received += len(answer.body) if answer.status == 200 else 0
    except (LinkBroken, TimeoutError, RemoteError) as error:
        facts = replace(facts, problem=f"{server.node}: {str(error) or 'too slow'}")
    took_ms = clock.monotonic_ms() - began_ms if received else 0
    return replace(facts, received_bytes=facts.received_bytes + received, took_ms=facts.took_ms + took_ms)


def choose_shards(shards: tuple[ShardEntry, ...]) -> list[ShardEntry]:
    """The largest ones that fit into the bound; one at least."""
    chosen: list[ShardEntry] = []
    for shard in sorted(shards, key=lambda each: -each.length):
        if not chosen or sum(each.length for each in chosen) + shard.length <= SHARDS_BYTES_MAX:
            chosen.append(shard)
        else:
            break
    return chosen
