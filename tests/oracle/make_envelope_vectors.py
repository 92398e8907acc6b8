"""Write tests/vectors/envelope.json: frames built from the standard library and signed by eth-account.

python tests/oracle/make_envelope_vectors.py
"""

import json
import sys
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from eth_account import Account

sys.path.insert(0, str(Path(__file__).parent))
from plain_msgpack import message

VECTORS = Path(__file__).parents[1] / "vectors" / "envelope.json"
PREFIX = b"prime-swarm envelope 1\n"
SECRET, OTHER = bytes([7]) * 32, bytes([8]) * 32
SENDER = bytes.fromhex(Account.from_key(SECRET).address[2:])
NOW_MS = 1_800_000_000_000
HONEST = {
    "version": 1,
    "network": "main",
    "run": "run-1",
    "sender": SENDER,
    "sequence": 42,
    "issued_at_ms": NOW_MS,
    "expires_at_ms": NOW_MS + 60_000,
    "kind": "heartbeat",
    "body": b"\x81\xa1a\x01",
}


def sign(letter, secret=SECRET, prefix=PREFIX):
    return Account.from_key(secret).unsafe_sign_hash(sha256(prefix + letter).digest()).signature


def frame_of(secret=SECRET, prefix=PREFIX, **changed):
    letter = message(**(HONEST | changed))
    return sign(letter, secret, prefix) + letter


def accepted(why, **changed):
    value = HONEST | changed
    frame = frame_of(**changed)
    shown = {name: item.hex() if isinstance(item, bytes) else item for name, item in value.items()}
    return {"why": why, "letter": shown, "frame": frame.hex(), "frame_sha256": sha256(frame).hexdigest()}


def refused(why, field, frame):
    return {"why": why, "field": field, "frame": frame.hex()}


def get_refused():
    honest = frame_of()
    return [
        refused("another network", "Payload.network", frame_of(network="test")),
        refused("an old version", "Payload.version", frame_of(version=0)),
        refused("signed by another key", "Payload.sender", frame_of(secret=OTHER)),
        refused("signed under another prefix", "Payload.sender", frame_of(prefix=b"prime-swarm envelope 2\n")),
        refused("expires as it is issued", "Payload.expires_at_ms", frame_of(expires_at_ms=NOW_MS)),
        refused("expires before it is issued", "Payload.expires_at_ms", frame_of(expires_at_ms=NOW_MS - 1)),
        refused("lives too long", "Payload.expires_at_ms", frame_of(expires_at_ms=NOW_MS + 300_001)),
        refused("a negative sequence", "Payload.sequence", frame_of(sequence=-1)),
        refused("a sequence past 63 bits", "Payload.sequence", frame_of(sequence=2**63)),
        refused("an empty kind", "Payload.kind", frame_of(kind="")),
        refused("a kind too long", "Payload.kind", frame_of(kind="k" * 49)),
        refused("a run that is no name", "Payload.run", frame_of(run="../x")),
        refused("a sender of 19 bytes", "Payload.sender", frame_of(sender=SENDER[:19])),
        refused("a field too many", "Payload", frame_of(extra=1)),
        refused("no signature fits", "signature", honest[:64] + b"\x1d" + honest[65:]),
        refused("one byte of the body flipped", "Payload.sender", honest.replace(b"\x81\xa1a\x01", b"\x81\xa1a\x02")),
        refused("trailing bytes", "Payload", honest + b"\x00"),
        refused("only a signature", "envelope", honest[:65]),
        refused("empty", "envelope", b""),
    ]


def main():
    vectors = {
        "made_by": f"eth-account {version('eth-account')}, tests/oracle/make_envelope_vectors.py",
        "secret": SECRET.hex(),
        "network": "main",
        "now_ms": NOW_MS,
        "signed": "SHA-256 of the ASCII text 'prime-swarm envelope 1', a newline, and the letter",
        "accepted": [
            accepted("a heartbeat of a run"),
            accepted("about no run", run=None),
            accepted("the smallest", sequence=0, issued_at_ms=0, expires_at_ms=1, body=b"", kind="x"),
            accepted(
                "the largest numbers",
                sequence=2**63 - 1,
                issued_at_ms=2**63 - 1 - 300_000,
                expires_at_ms=2**63 - 1,
                kind="k" * 48,
            ),
            accepted("a later version", version=2),
        ],
        "refused": get_refused(),
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
