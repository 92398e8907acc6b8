"""Records that come over HTTP are judged like gossip; silence of the coordinator is waited out and told."""

import asyncio
from typing import Any

from prime_protocol.errors import LocalError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import (
    RELAY_POLL,
    RELAY_PUBLISH,
    ReceivedGossip,
    RelayPollReply,
    RelayPublish,
    RelayPublishReply,
)
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher
from prime_runtime.http.client import SignedReply, Unreachable
from prime_runtime.http.config import ServerAddress
from prime_runtime.keys import SequenceCounter
from support.gossip_examples import NETWORK, NOW_MS, RUN, announced, head_seen, key_of, sealed, serving

TRAINER = key_of("trainer").node


class HandClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.ms = NOW_MS
        self.slept: list[int] = []

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept.append(duration_ms)
        self.ms += duration_ms
        await asyncio.sleep(0)


class Coordinator:
    """Answers what it is given, in order; then it is gone."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def call(self, server: ServerAddress, endpoint: Any, message: Any, **how: Any) -> SignedReply[Any]:
        """As HttpClient.call."""
        self.asked.append((endpoint.kind, message))
        answer = self.answers.pop(0) if self.answers else Unreachable("gone")
        if isinstance(answer, Exception):
            raise answer
        return SignedReply(answer, b"", b"")


def records(*frames: bytes, cursor: int = 7) -> RelayPollReply:
    return RelayPollReply(cursor=cursor, trainer=TRAINER, nodes=3, peers=(), frames=frames)


def client_of(coordinator: Coordinator, clock: HandClock) -> tuple[GossipHttpClient, list[ReceivedGossip], GossipGuard]:
    heard: list[ReceivedGossip] = []
    guard = GossipGuard(NETWORK, is_trainer=lambda run, node: node == TRAINER)
    client = GossipHttpClient(
        coordinator,  # type: ignore[arg-type]
        ServerAddress("http://c:1", TRAINER),
        network=NETWORK,
        run=RUN,
        clock=clock,
        guard=guard,
        deliver=heard.append,
    )
    return client, heard, guard


async def test_only_what_the_guard_lets_through_is_heard_and_each_once() -> None:
    good = [sealed("trainer", announced(0)), sealed("a", serving(0)), sealed("a", head_seen(1))]
    bad = [sealed("a", announced(1)), b"no frame", good[1]]
    coordinator = Coordinator(records(*good, *bad), records(*good, cursor=9))
    client, heard, _ = client_of(coordinator, HandClock())
    first = await client.poll(wait_ms=5)
    await client.poll()
    assert [gossip.frame for gossip in heard] == good
    assert (client.nodes, client.trainer, client.problem, client.answered_ms) == (3, TRAINER, "", NOW_MS)
    assert [message.seen for _, message in coordinator.asked] == [0, first.cursor]


async def test_it_asks_on_slower_while_nobody_answers_and_says_why() -> None:
    clock = HandClock()
    coordinator = Coordinator(records(), Unreachable("down"), Unreachable("down"), records(sealed("a", serving(0))))
    client, heard, _ = client_of(coordinator, clock)
    task = asyncio.create_task(client.run())
    while len(coordinator.asked) < 12:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(heard) == 1
    assert clock.slept[:6] == [1000, 1000, 2000, 200, 1000, 2000]
    assert max(clock.slept) == 30_000
    assert client.problem == "gone"


async def test_a_voice_sends_by_every_way_and_one_that_fails_hinders_no_other() -> None:
    clock = HandClock()
    coordinator = Coordinator(RelayPublishReply(is_new=True, reason=""))
    client, _, guard = client_of(coordinator, clock)
    went: list[ReceivedGossip] = []
    broken = True

    async def sometimes(run: Any, gossip: ReceivedGossip) -> None:
        if broken:
            raise LocalError("gossip is down")
        went.append(gossip)

    transports = (sometimes, client.send)
    voice = GossipPublisher(key_of("a"), NETWORK, guard, clock=clock, sequence=SequenceCounter(), transports=transports)
    said = await voice.publish(RUN, serving(0))
    assert said is not None
    assert coordinator.asked == [(RELAY_PUBLISH.kind, RelayPublish(frame=said.frame))]
    assert voice.failures == {0: "gossip is down"}
    broken = False
    again = await voice.publish(RUN, serving(0))
    assert went == [again]
    assert voice.failures == {1: "gone"}
    assert await voice.publish(RUN, announced(0)) is None, "a node does not announce"
    assert RELAY_POLL.kind == "relay-poll"
