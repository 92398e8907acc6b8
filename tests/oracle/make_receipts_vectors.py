"""Write tests/vectors/receipts.json with eth-account's EIP-712: the three documents, in two domains.

python tests/oracle/make_receipts_vectors.py
"""

import json
from importlib.metadata import version
from pathlib import Path

from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils import keccak

VECTORS = Path(__file__).parents[1] / "vectors" / "receipts.json"
SECRET = bytes([7]) * 32
SIGNER = Account.from_key(SECRET)
OTHER = Account.from_key(bytes([8]) * 32).address.lower()
DOMAINS = [
    {"chainId": 0, "verifyingContract": "0x" + "00" * 20},
    {"chainId": 8453, "verifyingContract": "0x" + "c0" * 20},
]
TYPES = {
    "Delegation": "string network,address owner,address node,uint64 issuedAtMs,uint64 expiresAtMs",
    "SubmissionReceipt": "string network,string run,uint64 step,uint64 lease,address node,bytes32 checkpointRoot,"
    "bytes32 fileDigest,bytes32 rolloutRoot",
    "VerdictReceipt": "string network,string run,bytes32 submission,address validator,uint64 outcome,bytes32 evidence",
}
DOCUMENTS = [
    ("Delegation", ["main", SIGNER.address.lower(), OTHER, 1_800_000_000_000, 1_800_000_000_000 + 86_400_000]),
    ("Delegation", ["m", SIGNER.address.lower(), SIGNER.address.lower(), 0, 1]),
    (
        "SubmissionReceipt",
        ["main", "run-1", 7, 12345, SIGNER.address.lower(), "0x" + "11" * 32, "0x" + "22" * 32, "0x" + "33" * 32],
    ),
    (
        "SubmissionReceipt",
        [
            "main",
            "r",
            2**63 - 1,
            2**63 - 1,
            SIGNER.address.lower(),
            "0x" + "00" * 32,
            "0x" + "ff" * 32,
            "0x" + "a5" * 32,
        ],
    ),
    ("VerdictReceipt", ["main", "run-1", "0x" + "44" * 32, SIGNER.address.lower(), 2, "0x" + "55" * 32]),
    ("VerdictReceipt", ["main", "run-1", "0x" + "44" * 32, SIGNER.address.lower(), 0, "0x" + "00" * 32]),
]


def vector(kind, values, domain):
    columns = [column.split(" ") for column in TYPES[kind].split(",")]
    fields = {name: value for (_, name), value in zip(columns, values, strict=True)}
    signable = encode_typed_data(
        {"name": "prime-swarm", "version": "1"} | domain,
        {kind: [{"type": solidity, "name": name} for solidity, name in columns]},
        fields,
    )
    return {
        "type": kind,
        "domain": domain,
        "fields": fields,
        "struct_hash": signable.body.hex(),
        "digest": keccak(b"\x19\x01" + signable.header + signable.body).hex(),
        "signature": SIGNER.sign_message(signable).signature.hex(),
    }


def main():
    vectors = {
        "made_by": f"eth-account {version('eth-account')}, tests/oracle/make_receipts_vectors.py",
        "domain_type": "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)",
        "types": {kind: f"{kind}({columns})" for kind, columns in TYPES.items()},
        "secret": SECRET.hex(),
        "signer": SIGNER.address.lower(),
        "receipts": [vector(kind, values, domain) for kind, values in DOCUMENTS for domain in DOMAINS],
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
