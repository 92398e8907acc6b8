"""A network on a chain: keys, a log of real leaves with its tree, and what parties sign and show to the contracts."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import eth_abi

from prime_protocol.constants import SIGNATURE_BYTES
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.log.merkle import (
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_root,
)
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import Signature, WalletKey, keccak
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, VerdictReceipt, compute_receipt_id, sign_document
from support.contracts.evm import CHAIN_ID, TERMS, Chain, node_id

NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
RUN_KEY = keccak(RUN.encode())
EVIDENCE = Digest(sha256(b"evidence").digest())
OFFSETS = {
    "SlashProposed": b"\xa8evidence\xc4\x20",
    "SlashExecuted": b"\x82\xa9bounty_to",
    "ValidatorScored": b"\x83\xacpenalty_nano",
    "SlashOverturned": b"\x81\xaasubmission\xc4\x20",
}
"""What the part of a leaf begins with that the court rebuilds."""


def key_of(name: str) -> WalletKey:
    return WalletKey.from_secret(sha256(f"scene/{name}".encode()).digest())


@dataclass(frozen=True)
class Consent:
    """Node: this owner may stand behind me. The vault's own document."""

    owner: NodeId
    node: NodeId
    nonce: int


class Log:
    """Leaves, their tree, and how far it is anchored."""

    def __init__(self, chain: Chain, key: WalletKey) -> None:
        self.chain = chain
        self.key = key
        self.tree = MerkleTree()
        self.leaves: list[bytes] = []
        self.anchored: list[int] = []

    def add(self, leaf: bytes) -> int:
        self.leaves.append(leaf)
        self.tree.append(compute_leaf_hash(leaf))
        return len(self.leaves) - 1

    def head(self, size: int, root: Digest | None = None) -> tuple[int, Digest, Signature]:
        """A signed head; of another history where a root is given."""
        root = root or _root_of(self.leaves[:size])
        domain = Domain(CHAIN_ID, node_id(self.chain.log_anchor))
        return size, root, sign_document(self.key, TreeHead(ORIGIN_PREFIX + NETWORK, size, root), domain)

    def anchor(self) -> None:
        old, new = (self.anchored or [0])[-1], len(self.leaves)
        size, root, signature = self.head(new, self.tree.root())
        old_root = compute_root(old, self.tree.get_node) if old else bytes(32)
        proof = build_consistency_proof(old, new, self.tree.get_node)
        self.chain.call(self.chain.log_anchor, "anchor", RUN_KEY, size, root, old_root, proof, signature)
        self.anchored.append(new)

    def entry(self, index: int) -> tuple[Any, ...]:
        """A LoggedEntry for the court, against the first head that covers it."""
        leaf = self.leaves[index]
        record = decode(LogRecord, leaf)
        letter = decode(Payload, record.frame[SIGNATURE_BYTES:])
        size = next(size for size in self.anchored if size > index)
        proof = build_inclusion_proof(index, size, self.tree.get_node)
        offset = leaf.index(OFFSETS[letter.kind])
        return leaf, offset, letter.issued_at_ms, letter.expires_at_ms, index, size, proof


def _root_of(leaves: list[bytes]) -> Digest:
    return MerkleTree([compute_leaf_hash(leaf) for leaf in leaves]).root()


def receipt_values(receipt: SubmissionReceipt, signature: Signature) -> tuple[Any, ...]:
    """ICourt.Receipt."""
    named = receipt.step, receipt.lease, receipt.node, receipt.checkpoint_root, receipt.file_digest
    return *named, receipt.rollout_root, signature


def verdict_values(verdict: VerdictReceipt, signature: Signature) -> tuple[Any, ...]:
    """ICourt.Verdict."""
    return verdict.validator, verdict.outcome, verdict.evidence, signature


class Scene:
    """The parties of one network and its contracts."""

    def __init__(self, chain: Chain, operator: WalletKey) -> None:
        self.chain = chain
        self.operator = operator
        self.log = Log(chain, key_of("log"))
        self.domain = Domain(CHAIN_ID, node_id(chain.court))
        self.sequence = 0

    @classmethod
    def started(cls, *, now_s: int = 1_800_000_000, delay_s: int = 10 * 86_400) -> "Scene":
        operator = key_of("operator")
        scene = cls(Chain(operator.node, now_s=now_s, delay_s=delay_s), operator)
        scene.create_run()
        return scene

    def create_run(self, **terms: int | bool) -> None:
        values = tuple((TERMS | terms).values())
        self.chain.call(self.chain.registry, "createRun", RUN, self.log.key.node, values, by=self.operator.node)

    def give(self, account: bytes, amount: int, spender: str) -> None:
        """Tokens, and leave for a contract to take them."""
        self.chain.call(self.chain.token, "transfer", account, amount)
        self.chain.call(self.chain.token, "approve", spender, amount, by=account)

    def stake(self, owner: bytes, amount: int, node: bytes | None = None) -> None:
        self.give(owner, amount, self.chain.vault)
        self.chain.call(self.chain.vault, "deposit", node or owner, amount, by=owner)

    def submission(self, key: WalletKey, lease: int) -> tuple[Digest, tuple[Any, ...]]:
        receipt = SubmissionReceipt(
            network=NETWORK,
            run=RUN,
            step=Step(7),
            lease=lease,
            node=key.node,
            checkpoint_root=Digest(sha256(b"weights").digest()),
            file_digest=Digest(sha256(b"file").digest()),
            rollout_root=Digest(sha256(b"rows").digest()),
        )
        return compute_receipt_id(receipt), receipt_values(receipt, sign_document(key, receipt, self.domain))

    def verdicts(self, name: Digest, outcome: int, judges: list[WalletKey]) -> list[tuple[Any, ...]]:
        """Sorted by validator, as the court wants them."""
        made = []
        for key in sorted(judges, key=lambda key: bytes(key.node)):
            verdict = VerdictReceipt(
                network=NETWORK, run=RUN, submission=name, validator=key.node, outcome=outcome, evidence=EVIDENCE
            )
            made.append(verdict_values(verdict, sign_document(key, verdict, self.domain)))
        return made

    def write(self, entry: Any) -> int:
        """A coordinator's entry into the log; its index."""
        self.sequence += 1
        now_ms = self.chain.now_s * 1000
        frame = seal_envelope(
            self.operator,
            kind=type(entry).__name__,
            body=encode(entry),
            network=NETWORK,
            run=RUN,
            sequence=self.sequence,
            issued_at_ms=now_ms,
            life_ms=60_000,
        )
        return self.log.add(encode(LogRecord(now_ms, frame)))


def payout_leaf(account: bytes, cumulative: int) -> bytes:
    return keccak(keccak(eth_abi.encode(["address", "uint256"], [account, cumulative])))


def payout_node(left: bytes, right: bytes) -> bytes:
    return keccak(min(left, right) + max(left, right))
