"""Why a call failed, in words that say what to do, and whether it is safe to send again."""

import errno
import socket
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_runtime.http.client import describe_skew, explain_expiry, explain_refusal, explain_transport_error
from prime_runtime.http.config import CLIENT_IDLE_MS, ServerLimits

KEY = Mock(spec=ConnectionKey, host="h", port=1, ssl=True)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("1789000000000", "it expired on 2026-09-10 00:26:40 UTC, as the run's terms allow"),
        ("", "it expired, as the run's terms allow"),
        ("-5", "it expired, as the run's terms allow"),
        ("9" * 14, "it expired, as the run's terms allow"),
        ("\u0663", "it expired, as the run's terms allow"),
    ],
)
def test_a_reader_is_told_when_a_file_expired_unless_the_server_made_the_time_up(header: str, told: str) -> None:
    assert explain_expiry(header) == told


@pytest.mark.parametrize(
    ("error", "words", "is_repeatable"),
    [
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "no")), "is the coordinator running", True),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.EHOSTUNREACH, "no")), "no route to it", True),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ENOBUFS, "odd thing")), "odd thing", True),
        (aiohttp.ClientConnectorDNSError(KEY, socket.gaierror(-2, "no")), "the name cannot be resolved", True),
        (aiohttp.ClientConnectorSSLError(KEY, OSError(1, "bad")), "its TLS certificate is invalid", False),
        (aiohttp.ConnectionTimeoutError(), "the connection timed out", True),
        (aiohttp.SocketTimeoutError(), "did not answer in time", False),
        (TimeoutError(), "did not answer in time", False),
        (aiohttp.ServerDisconnectedError(), "closed the connection", False),
        (aiohttp.ClientPayloadError(), "closed the connection", False),
    ],
)
def test_a_fault_of_the_connection_is_explained(error: Exception, words: str, is_repeatable: bool) -> None:
    failure = explain_transport_error("http://h", error, is_idempotent=False)
    assert words in str(failure.error)
    assert "http://h" in str(failure.error)
    assert failure.is_retryable is is_repeatable
    assert explain_transport_error("http://h", error, is_idempotent=True).is_retryable is (words[:7] != "its TLS")


@pytest.mark.parametrize("code", list(RefusalCode))
def test_only_what_was_never_begun_is_sent_again(code: RefusalCode) -> None:
    refusal = Refusal(code=code, field="f", problem="p", retry_after_ms=7, now_ms=0)
    failure = explain_refusal("http://h", refusal, now_ms=5000, is_idempotent=False)
    assert failure.is_retryable is (code in ("rate_limited", "overloaded", "restarted", "slow"))
    assert failure.retry_after_ms == 7
    assert ("5.0 s ahead" in str(failure.error)) is (code in ("clock", "restarted"))
    again = explain_refusal("http://h", refusal, now_ms=0, is_idempotent=True)
    assert again.is_retryable is (failure.is_retryable or code in ("timed_out", "replayed"))


def test_a_skew_is_told_in_seconds_and_direction() -> None:
    assert "312.5 s behind" in describe_skew(-312_500)


def test_a_client_lets_go_of_an_idle_connection_before_the_server_does() -> None:
    assert ServerLimits().idle_ms > CLIENT_IDLE_MS
