"""Write tests/vectors/gossip.json: frames from the standard library, signed by eth-account, peer ids by libp2p.

python tests/oracle/make_gossip_vectors.py
"""

import json
import sys
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from eth_account import Account
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.id import ID

sys.path.insert(0, str(Path(__file__).parent))
from plain_msgpack import message

VECTORS = Path(__file__).parents[1] / "vectors" / "gossip.json"
SCRIPT = "tests/oracle/make_gossip_vectors.py"
PREFIX = b"prime-swarm envelope 1\n"
SECRET, OTHER = bytes([7]) * 32, bytes([8]) * 32
NOW_MS = 1_800_000_000_000
NOTE = (
    "prime.example/log\n9\n" + "dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHR0dHQ=" + "\n\n— prime.example/log "
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n"
).encode()
KEYFRAME = {
    "step": 7,
    "root": b"r" * 32,
    "manifest": b"m" * 32,
    "manifest_bytes": 5_000,
    "kind": "keyframe",
    "base": None,
    "transport_bytes": 10**9,
}
NINE_URLS = [f"http://a.example:{n}" for n in range(1, 10)]
FIVE_PARENTS = [bytes([n]) * 20 for n in range(5)]
NINE_MANIFESTS = [bytes([n]) * 32 for n in range(9)]
SERVING = {
    "urls": ["http://203.0.113.9:8080", "https://[2001:db8::1]:443", "http://node.example:80"],
    "depth": 2,
    "slots_free": 3,
    "manifests": [b"m" * 32, b"n" * 32],
    "parents": [b"p" * 20],
    "sent_bytes": 10**12,
}


def peer_id(secret):
    return ID.from_pubkey(create_new_key_pair(secret).public_key).to_base58()


def frame_of(kind, body, secret=SECRET, run="run-1", **changed):
    letter = message(
        **{
            "version": 1,
            "network": "main",
            "run": run,
            "sender": bytes.fromhex(Account.from_key(secret).address[2:]),
            "sequence": 42,
            "issued_at_ms": NOW_MS,
            "expires_at_ms": NOW_MS + 120_000,
            "kind": kind,
            "body": message(**body),
        }
        | changed
    )
    signature = Account.from_key(secret).unsafe_sign_hash(sha256(PREFIX + letter).digest()).signature
    return signature + letter


def shown(value):
    if isinstance(value, bytes):
        return value.hex()
    return [shown(item) for item in value] if isinstance(value, list) else value


def accepted(why, kind, body, **changed):
    fields = {name: shown(value) for name, value in body.items()}
    return {"why": why, "kind": kind, "message": fields, "frame": frame_of(kind, body, **changed).hex()}


def refused(why, field, kind, body, **changed):
    return {"why": why, "field": field, "kind": kind, "frame": frame_of(kind, body, **changed).hex()}


def get_refused():
    announced, serving = "gossip.announced", "gossip.serving"
    return [
        refused("of another run", "Payload.run", announced, KEYFRAME, run="run-2"),
        refused("of no run", "Payload.run", announced, KEYFRAME, run=None),
        refused("of another network", "Payload.network", announced, KEYFRAME, network="test"),
        refused(
            "expired", "Payload.expires_at_ms", announced, KEYFRAME, issued_at_ms=NOW_MS - 1_000, expires_at_ms=NOW_MS
        ),
        refused("a keyframe with a base", "CheckpointAnnounced.base", announced, KEYFRAME | {"base": b"b" * 32}),
        refused("a delta without one", "CheckpointAnnounced.base", announced, KEYFRAME | {"kind": "delta"}),
        refused("an empty manifest", "CheckpointAnnounced.manifest_bytes", announced, KEYFRAME | {"manifest_bytes": 0}),
        refused("a URL with a path", "ServingRecord.urls[0]", serving, SERVING | {"urls": ["http://a.example:1/x"]}),
        refused("a URL without a port", "ServingRecord.urls[0]", serving, SERVING | {"urls": ["http://a.example"]}),
        refused(
            "the cloud's metadata", "ServingRecord.urls[0]", serving, SERVING | {"urls": ["http://169.254.169.254:80"]}
        ),
        refused("a URL twice", "ServingRecord.urls", serving, SERVING | {"urls": ["http://a.example:1"] * 2}),
        refused(
            "nine URLs",
            "ServingRecord.urls",
            serving,
            SERVING | {"urls": [f"http://a.example:{n}" for n in range(1, 10)]},
        ),
        refused("a parent twice", "ServingRecord.parents", serving, SERVING | {"parents": [b"p" * 20] * 2}),
        refused("five parents", "ServingRecord.parents", serving, SERVING | {"parents": FIVE_PARENTS}),
        refused("a manifest twice", "ServingRecord.manifests", serving, SERVING | {"manifests": [b"m" * 32] * 2}),
        refused(
            "nine manifests",
            "ServingRecord.manifests",
            serving,
            SERVING | {"manifests": [bytes([n]) * 32 for n in range(9)]},
        ),
        refused("too deep", "ServingRecord.depth", serving, SERVING | {"depth": 65}),
        refused("no tree head", "HeadSeen.note", "gossip.head-seen", {"note": b"hello"}),
        refused(
            "a record of another key", "PeerRecord.addresses[0]", "gossip.peer-record", peer_record(OTHER), run=None
        ),
        refused("a record of a run", "Payload.run", "gossip.peer-record", peer_record(SECRET)),
        refused(
            "a record without addresses", "PeerRecord.addresses", "gossip.peer-record", {"addresses": []}, run=None
        ),
    ]


def peer_record(secret):
    peer = peer_id(secret)
    return {"addresses": [f"/ip4/203.0.113.9/tcp/4001/p2p/{peer}", f"/dns6/node.example/tcp/4001/p2p/{peer}"]}


def main():
    delta = KEYFRAME | {"kind": "delta", "base": b"b" * 32, "step": 2**63 - 1}
    nobody = {"urls": [], "depth": 0, "slots_free": 0, "manifests": [], "parents": [], "sent_bytes": 0}
    vectors = {
        "made_by": ", ".join(f"{name} {version(name)}" for name in ("eth-account", "libp2p")) + ", " + SCRIPT,
        "secret": SECRET.hex(),
        "peer_id": peer_id(SECRET),
        "network": "main",
        "run": "run-1",
        "now_ms": NOW_MS,
        "topic_of_announced": "/prime/main/run-1/gossip.announced",
        "accepted": [
            accepted("a keyframe", "gossip.announced", KEYFRAME),
            accepted("a delta, of the last step there can be", "gossip.announced", delta),
            accepted("a node that serves", "gossip.serving", SERVING),
            accepted("a node that serves nobody", "gossip.serving", nobody),
            accepted("a tree head, its signature not checked here", "gossip.head-seen", {"note": NOTE}),
            accepted("a peer record", "gossip.peer-record", peer_record(SECRET), run=None),
        ],
        "refused": get_refused(),
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
