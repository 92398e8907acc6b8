"""Carries the agent's messages to the coordinator and brings back what became of them, as events."""

import logging
from typing import Any

from prime_node.events import Event, Refused, ReplyReceived, Send, TimedOut
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.exchange import Endpoint
from prime_protocol.messages import ENTRY_ENDPOINTS, HEARTBEAT, LEASE
from prime_runtime import http_errors
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient, Server

log = logging.getLogger(__name__)

KNOWN: tuple[Endpoint[Any, Any], ...] = (HEARTBEAT, LEASE, *ENTRY_ENDPOINTS)
ENDPOINTS = {endpoint.request: endpoint for endpoint in KNOWN}
SEND_MS = 15_000
"""Time for one message, retries included. The agent tries again by its own rules."""


class Courier:
    """Also knows whether the coordinator can be reached."""

    def __init__(self, client: HttpClient, server: Server, clock: Clock) -> None:
        self._client = client
        self._server = server
        self._clock = clock
        self.problem = "nothing was sent yet"
        """Why the last message got no answer; empty where it got one."""
        self.answered_ms: int | None = None
        """When an answer last came, on the wall clock."""

    async def deliver(self, send: Send) -> Event:
        endpoint = ENDPOINTS[type(send.message)]
        try:
            answer = await self._client.call(self._server, endpoint, send.message, run=send.run, deadline_ms=SEND_MS)
        except http_errors.Refused as error:
            self._note("")
            log.info("%s was refused: %s", endpoint.kind, error)
            return Refused(send.request, error.refusal)
        except (LocalError, RemoteError) as error:
            self._note(str(error))
            return TimedOut(send.request)
        self._note("")
        return ReplyReceived(send.request, answer.message)

    def _note(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("the coordinator does not answer: %s", problem)
        elif not problem:
            if self.problem and self.answered_ms is not None:
                log.info("the coordinator answers again")
            self.answered_ms = self._clock.now_ms()
        self.problem = problem
