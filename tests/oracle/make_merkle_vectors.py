"""Write tests/vectors/merkle.json with pymerkle, a Merkle log that shares no code with ours.

pymerkle is GPLv3+, so it is no dependency: give it an environment of its own.

    python -m venv /tmp/pymerkle && /tmp/pymerkle/bin/pip install pymerkle==7.0.0
    /tmp/pymerkle/bin/python tests/oracle/make_merkle_vectors.py
"""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from pymerkle import InmemoryTree, verify_consistency, verify_inclusion

SIZE = 300
EVERY = 130
"""Below this size every proof is compared; past 128, so that each shape of a right border occurs."""
SHOWN = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 64, 65, 100, 127, 128, 129, 255, 256, 257, 300]
VECTORS = Path(__file__).parents[1] / "vectors" / "merkle.json"


def inclusion(tree, index, size):
    """The RFC 9162 proof. pymerkle counts leaves from 1 and puts the leaf itself first."""
    proof = tree.prove_inclusion(index + 1, size)
    verify_inclusion(tree.get_leaf(index + 1), tree.get_root(size), proof, index=index + 1, size=size)
    return proof.path[1:]


def consistency(tree, old_size, new_size):
    """The RFC 9162 proof.

    pymerkle's path begins inside the first subtree that the old tree lacks when the old tree ends at a split: those
    leading hashes (subset 0) fold into the one hash that the RFC has there. The RFC leaves out the old root itself.
    """
    proof = tree.prove_consistency(old_size, new_size)
    verify_consistency(tree.get_root(old_size), tree.get_root(new_size), proof)
    path, subset = list(proof.path), list(proof.subset)
    shared = subset.index(1)
    if shared:
        beyond = path[0]
        for digest in path[1:shared]:
            beyond = tree.hash_pair(beyond, digest)
        path = [path[shared], beyond, *path[shared + 1 :]]
    return path[1:] if path[0] == tree.get_root(old_size) else path


def digest_of(proofs):
    """SHA-256 over every proof: the number of hashes in one byte, then the hashes."""
    state = sha256()
    for proof in proofs:
        state.update(bytes([len(proof)]) + b"".join(proof))
    return state.hexdigest()


def main():
    tree = InmemoryTree(algorithm="sha256")
    for number in range(SIZE):
        tree.append_entry(b"entry %d" % number)
    sizes = range(1, EVERY + 1)
    shown = [(index, size) for size in SHOWN for index in sorted({0, size // 3, size - 1})]
    vectors = {
        "made_by": f"pymerkle {version('pymerkle')}, tests/oracle/make_merkle_vectors.py",
        "entries": f"entry number i of {SIZE} is the ASCII text 'entry i', i in decimal",
        "roots": [tree.get_root(size).hex() for size in range(SIZE + 1)],
        "inclusion": [
            {"index": index, "size": size, "proof": [digest.hex() for digest in inclusion(tree, index, size)]}
            for index, size in shown
        ],
        "consistency": [
            {"old": old + 1, "new": new, "proof": [digest.hex() for digest in consistency(tree, old + 1, new)]}
            for old, new in shown
        ],
        "every_size": EVERY,
        "every_inclusion_sha256": digest_of(inclusion(tree, index, size) for size in sizes for index in range(size)),
        "every_consistency_sha256": digest_of(
            consistency(tree, old, new) for new in sizes for old in range(1, new + 1)
        ),
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
