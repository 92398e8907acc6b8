"""The form of a request to be connected to."""

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.gossip.dial_back import DialBack
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest

PROOF = Digest(b"p" * 32)


def test_it_names_a_server_url_and_nothing_else() -> None:
    message = DialBack(url="http://203.0.113.9:8450", proof=PROOF)
    assert decode(DialBack, encode(message)) == message
    for url in ("http://203.0.113.9:8450/path", "ftp://203.0.113.9:21", "http://169.254.169.254:80", "x"):
        with pytest.raises(RemoteError, match="url"):
            DialBack(url=url, proof=PROOF)
