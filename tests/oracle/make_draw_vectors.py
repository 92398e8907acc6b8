"""Write the audit draws of tests/vectors/beacon.json with hashlib alone, by docs/protocol/beacon.md.

    python tests/oracle/make_draw_vectors.py

The submissions, randomness, rates and owners stay as they are in the file. Every third candidate joins after the head
that fixed the round.
"""

import json
from hashlib import sha256
from pathlib import Path

VECTORS = Path(__file__).parents[1] / "vectors" / "beacon.json"
CANDIDATES_BEFORE = 100


def hash_fields(domain, *fields):
    framed = b"".join(len(field).to_bytes(4, "big") + field for field in (f"prime-swarm/{domain}".encode(), *fields))
    return sha256(framed).digest()


def parse(text):
    return bytes.fromhex(text.removeprefix("0x"))


def draw(case, joined):
    key = hash_fields("validators/2", parse(case["seed"]))
    early = sorted(
        (node for node in joined if joined[node] < CANDIDATES_BEFORE), key=lambda n: sha256(key + parse(n)).digest()
    )
    late = sorted((node for node in joined if joined[node] >= CANDIDATES_BEFORE), key=joined.get)
    drawn, used = [], {case["excluded_owner"]}
    for node in early + late:
        if len(drawn) < case["quorum"] and case["owners"][node] not in used:
            used.add(case["owners"][node])
            drawn.append(node)
    return drawn


def main():
    vectors = json.loads(VECTORS.read_text())
    for case in vectors["audits"]:
        seed = hash_fields("audit/2", parse(case["randomness"]), parse(case["submission"]))
        assert seed == parse(case["seed"])
        names = sorted(case["owners"])
        case["candidates"] = {
            node: place + (CANDIDATES_BEFORE if place % 3 == 2 else 0) for place, node in enumerate(names)
        }
        case["candidates_before"] = CANDIDATES_BEFORE
        case["drawn"] = draw(case, case["candidates"])
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
