"""An address has one spelling, names a place where a node can be, and hides nothing."""

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.wire.addresses import PeerAddress, ServerUrl
from support.gossip_network import ANN

PEER = ANN.peer_id()


@pytest.mark.parametrize(
    "text",
    [
        "http://203.0.113.9:8080",
        "https://node.example:443",
        "http://[2001:db8::1]:80",
        "http://127.0.0.1:1",
        "http://10.0.0.7:65535",
        "http://a-b.c1.example:9",
        "http://localhost:9",
        "http://[::1]:9",
    ],
)
def test_a_url_is_printed_as_it_was_read(text: str) -> None:
    assert str(ServerUrl.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://node.example",
        "ftp://node.example:1",
        "HTTP://node.example:1",
        "http://Node.example:1",
        "http://user@node.example:1",
        "http://user:word@node.example:1",
        "http://node.example:1/",
        "http://node.example:1/path",
        "http://node.example:1?query",
        "http://node.example:1#part",
        "http://node.example:0",
        "http://node.example:01",
        "http://node.example:65536",
        "http://node.example:99999",
        "http://node.example:1\n",
        "http://-node.example:1",
        "http://node..example:1",
        "http://node.example.:1",
        "http://1.2.3:1",
        "http://1.2.3.256:1",
        "http://01.2.3.4:1",
        "http://0x7f000001:1x",
        "http://node.0:1",
        "http://2130706433:1",
        "http://0.0.0.0:1",
        "http://169.254.169.254:80",
        "http://224.0.0.1:80",
        "http://[fe80::1]:80",
        "http://[::]:80",
        "http://[::ffff:1.2.3.4]:80",
        "http://[::ffff:102:304]:80",
        "http://[2001:db8:0::1]:80",
        "http://[1.2.3.4]:80",
        "http://[2001:db8::1%eth0]:80",
        "http://" + "a" * 60 + "." + "b" * 60 + "." + "c" * 20 + ":1",
        "http://" + "a." * 96 + "b:1",
    ],
)
def test_any_other_url_is_refused(text: str) -> None:
    with pytest.raises(RemoteError):
        ServerUrl.parse(text)


@pytest.mark.parametrize(
    "place",
    ["/ip4/203.0.113.9/tcp/4001", "/ip6/2001:db8::1/tcp/4001", "/dns4/node.example/tcp/1", "/dns6/node.example/tcp/1"],
)
def test_a_peer_address_is_printed_as_it_was_read_and_names_the_key(place: str) -> None:
    address = PeerAddress.parse(f"{place}/p2p/{PEER}")
    assert str(address) == f"{place}/p2p/{PEER}"
    assert (address.peer, address.node) == (PEER, ANN.node)


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/203.0.113.9/tcp/4001/p2p/{PEER[:-1]}",
        f"/ip4/203.0.113.9/tcp/4001/p2p/{PEER}x",
        f"/ip4/203.0.113.9/tcp/4001/p2p/{PEER}/p2p-circuit",
        "/ip4/203.0.113.9/tcp/4001",
        f"/ip4/203.0.113.9/udp/4001/p2p/{PEER}",
        f"/ip4/203.0.113.9/tcp/0/p2p/{PEER}",
        f"/ip4/203.0.113.9/tcp/65536/p2p/{PEER}",
        f"/ip4/2001:db8::1/tcp/1/p2p/{PEER}",
        f"/ip6/203.0.113.9/tcp/1/p2p/{PEER}",
        f"/ip4/0.0.0.0/tcp/1/p2p/{PEER}",
        f"/dns/node.example/tcp/1/p2p/{PEER}",
        f"/dns4/203.0.113.9/tcp/1/p2p/{PEER}",
        f"/dns4/{'a' * 64}/tcp/1/p2p/{PEER}",
        f"/dns4/{'a.' * 64}a/tcp/1/p2p/{PEER}",
        "/ip4/203.0.113.9/tcp/1/p2p/" + "1" * 53,
    ],
)
def test_any_other_peer_address_is_refused(text: str) -> None:
    with pytest.raises(RemoteError):
        PeerAddress.parse(text)
