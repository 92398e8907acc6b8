"""A gateway lends each lane to one download at a time, and loses none."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from prime_node.reverse.gateway import ReverseGateway
from prime_node.weights.connection import ShardConnection
from prime_protocol.weights.transfer import ReverseOffer
from prime_protocol.wire.ids import NodeId
from prime_runtime.clock import SystemClock
from prime_runtime.http.server import Caller

GATEWAY, PRIVATE = NodeId(b"g" * 20), NodeId(b"p" * 20)


class IdleLane:
    """A connection that is always free."""

    is_idle = True
    received_bytes = 0


def make_lane(name: str, on_close: object) -> ShardConnection:
    return cast(ShardConnection, IdleLane())


def open_gateway() -> ReverseGateway:
    """With one lane."""
    gateway = ReverseGateway(GATEWAY, make_lane, clock=SystemClock(), rng=Random(1))
    caller = cast(Caller, SimpleNamespace(sender=PRIVATE, address="192.0.2.1"))
    _, take_over = gateway.accept(caller, ReverseOffer(gateway=GATEWAY))
    take_over()
    return gateway


async def test_a_lane_is_not_lost_with_a_download_that_ends_as_it_gets_the_lane() -> None:
    gateway, got = open_gateway(), asyncio.Event()

    async def wait_for_lane() -> None:
        async with gateway.borrow(PRIVATE):
            got.set()

    async with gateway.borrow(PRIVATE):
        waiting = asyncio.create_task(wait_for_lane())
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not got.is_set()
    async with asyncio.timeout(1):
        await wait_for_lane()
