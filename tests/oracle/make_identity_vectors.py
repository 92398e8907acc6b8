"""Write tests/vectors/identity.json with libp2p (peer ids) and eth-account (addresses, EIP-55, signatures).

libp2p is no dependency of the tests: give it an environment of its own (it needs libgmp-dev to build).

    python -m venv /tmp/libp2p && /tmp/libp2p/bin/pip install libp2p==0.8.1 eth-account==0.14.0
    /tmp/libp2p/bin/python tests/oracle/make_identity_vectors.py
"""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from eth_account import Account
from libp2p.crypto.ed25519 import create_new_key_pair as ed25519_key_pair
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.peer.id import ID

VECTORS = Path(__file__).parents[1] / "vectors" / "identity.json"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SECRETS = [1, 2, ORDER - 1] + [int.from_bytes(sha256(b"identity %d" % n).digest(), "big") % ORDER for n in range(13)]


def key_vector(number):
    secret = number.to_bytes(32, "big")
    account = Account.from_key(secret)
    public = create_new_key_pair(secret).public_key
    digest = sha256(secret).digest()
    signed = account.unsafe_sign_hash(digest)
    return {
        "secret": secret.hex(),
        "public_key": public.to_bytes().hex(),
        "address": account.address.lower(),
        "checksum_address": account.address,
        "peer_id": str(ID.from_pubkey(public)),
        "digest": digest.hex(),
        "signature": signed.signature.hex(),
    }


def refused_peer_ids(honest):
    return {
        "empty": "",
        "one character too many": honest + "1",
        "a second leading zero byte": "1" + honest,
        "a character outside base58": honest[:-1] + "0",
        "not ASCII": honest[:-1] + "é",
        "an ed25519 key": str(ID.from_pubkey(ed25519_key_pair(bytes(32)).public_key)),
        "a point that is not on the curve": str(ID(bytes.fromhex("00250802122102") + b"\xff" * 32)),
        "an uncompressed prefix": str(ID(bytes.fromhex("00250802122104") + bytes(31) + b"\x01")),
        "a SHA-256 multihash": str(ID(bytes.fromhex("1220") + bytes(range(32)))),
    }


def refused_signatures(vector):
    r, s, v = vector["signature"][:64], int(vector["signature"][64:128], 16), int(vector["signature"][128:], 16)
    low = f"{s:064x}"
    return {
        "s in the upper half": f"{r}{ORDER - s:064x}{55 - v:02x}",
        "v of 0": f"{r}{low}{v - 27:02x}",
        "v of 29": f"{r}{low}1d",
        "v of 37 (EIP-155)": f"{r}{low}25",
        "r of zero": f"{'00' * 32}{low}{v:02x}",
        "s of zero": f"{r}{'00' * 32}{v:02x}",
        "r of the order": f"{ORDER:064x}{low}{v:02x}",
        "r that is no coordinate": f"{5:064x}{low}{v:02x}",
        "all ones": "ff" * 65,
        "all zeros": "00" * 65,
    }


def main():
    keys = [key_vector(number) for number in SECRETS]
    vectors = {
        "made_by": f"libp2p {version('libp2p')}, eth-account {version('eth-account')}, "
        "tests/oracle/make_identity_vectors.py",
        "keys": keys,
        "refused_peer_ids": refused_peer_ids(keys[0]["peer_id"]),
        "refused_secrets": ["00" * 32, f"{ORDER:064x}", "ff" * 32, "01" * 31, "01" * 33, ""],
        "refused_signatures": refused_signatures(keys[0]),
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
