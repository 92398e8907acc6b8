"""What a gateway may order a node to connect to."""

import pytest

from prime_node.reverse.punching import MEET_PATH, MeetOrder, format_order, parse_order
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import NodeId

PEER = NodeId(b"p" * 20)


@pytest.mark.parametrize("address", ["8.8.8.8", "2001:4860:4860::8888"])
@pytest.mark.parametrize("serves", [True, False])
def test_an_order_arrives_as_it_was_sent(address: str, serves: bool) -> None:
    order = MeetOrder(PEER, serves, address, 40_000)
    _, _, rest = format_order(order).partition(f"{MEET_PATH}/")
    assert parse_order(*rest.split("/"), allow_private=False) == order


@pytest.mark.parametrize(
    "how",
    [
        "serve-192.168.0.1-40000",
        "serve-127.0.0.1-40000",
        "serve-169.254.169.254-40000",
        "serve-224.0.0.1-40000",
        "serve-8.8.8.8-443",
        "serve-8.8.8.8-70000",
        "serve-8.8.8.8",
        "give-8.8.8.8-40000",
        "serve-example.com-40000",
        "serve-8.8.8.256-40000",
        "serve-:::-40000",
        "",
    ],
)
def test_an_order_that_leads_into_a_private_network_or_nowhere_is_refused(how: str) -> None:
    with pytest.raises(RemoteError):
        parse_order(str(PEER), how, allow_private=False)


def test_private_addresses_pass_where_the_owner_allows_them() -> None:
    assert parse_order(str(PEER), "take-192.168.0.1-40000", allow_private=True).port == 40_000
    with pytest.raises(RemoteError):
        parse_order(str(PEER), "take-224.0.0.1-40000", allow_private=True)
    with pytest.raises(RemoteError):
        parse_order("somebody", "take-192.168.0.1-40000", allow_private=True)
