"""How many envelopes are sealed and opened per second, and receipts signed and verified, against eth-account.

    python bench/signing.py [--rounds 10] [--count 300]

eth-account is what a wallet in Python would use. For the envelope it only signs and recovers the same digest; ours also
encodes, decodes and checks the payload. For receipts both do the whole of EIP-712.
"""

import sys
import time
from hashlib import sha256
from importlib.metadata import version
from typing import Any

from benchmark import BenchmarkParser, print_result, take_turns
from eth_account import Account
from eth_account.messages import encode_typed_data

from prime_protocol.constants import CLOCK_SKEW_MS_MAX
from prime_protocol.wire.envelope import ENVELOPE_PREFIX, ReplayGuard, open_envelope, seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step, checksum_address
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import (
    EMBEDDED_DOMAIN,
    SubmissionReceipt,
    sign_document,
    solidity_type,
    verify_document,
)

KEY = WalletKey.from_secret(b"k" * 32)
PEER = Account.from_key(KEY.secret())
MAIN, RUN = NetworkId("main"), RunId("run-1")
NOW_MS = 1_800_000_000_000
RECEIPT = SubmissionReceipt(
    network=MAIN,
    run=RUN,
    step=Step(7),
    lease=12_345,
    node=KEY.node,
    checkpoint_root=Digest(b"c" * 32),
    file_digest=Digest(b"f" * 32),
    rollout_root=Digest(b"r" * 32),
)


def seal_one(sequence: int = 0) -> bytes:
    return seal_envelope(
        KEY,
        kind="heartbeat",
        body=bytes(111),
        network=MAIN,
        run=RUN,
        sequence=sequence,
        issued_at_ms=NOW_MS,
        life_ms=60_000,
    )


def typed_data() -> Any:
    columns = [
        column.split(" ") for column in solidity_type(SubmissionReceipt)[len("SubmissionReceipt(") : -1].split(",")
    ]
    values = [MAIN, RUN, 7, 12_345, str(KEY.node), b"c" * 32, b"f" * 32, b"r" * 32]
    return encode_typed_data(
        {"name": "prime-swarm", "version": "1", "chainId": 0, "verifyingContract": "0x" + "00" * 20},
        {"SubmissionReceipt": [{"type": solidity, "name": name} for solidity, name in columns]},
        {name: value for (_, name), value in zip(columns, values, strict=True)},
    )


def guard_rate(count: int) -> float:
    guard = ReplayGuard(since_ms=NOW_MS - CLOCK_SKEW_MS_MAX)
    payloads = [open_envelope(seal_one(sequence), network=MAIN).payload for sequence in range(count)]
    started = time.perf_counter()
    for payload in payloads:
        guard.admit(payload, NOW_MS)
    return count / (time.perf_counter() - started)


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 10, 1)
    parser.add_size("--count", 300, 10)
    parser.add_size("--messages", 4_000, 100, "that pass the replay guard")
    options = parser.parse()
    frame, receipt_signature = seal_one(), sign_document(KEY, RECEIPT, EMBEDDED_DOMAIN)
    digest, signature = sha256(ENVELOPE_PREFIX + frame[65:]).digest(), frame[:65]
    assert PEER.unsafe_sign_hash(digest).signature == signature, "the peer must give the same signature"
    assert PEER.sign_message(typed_data()).signature == receipt_signature, "the peer must give the same signature"
    works = {
        "seal an envelope": seal_one,
        "eth-account: sign its digest": lambda: PEER.unsafe_sign_hash(digest),
        "open an envelope": lambda: open_envelope(frame, network=MAIN),
        "eth-account: recover from its digest": lambda: Account._recover_hash(digest, signature=signature),
        "sign a receipt": lambda: sign_document(KEY, RECEIPT, EMBEDDED_DOMAIN),
        "eth-account: sign a receipt": lambda: PEER.sign_message(typed_data()),
        "check a receipt": lambda: verify_document(RECEIPT, receipt_signature, signer=KEY.node, domain=EMBEDDED_DOMAIN),
        "eth-account: check a receipt": lambda: Account.recover_message(typed_data(), signature=receipt_signature),
    }
    seconds = take_turns(works, rounds=options.rounds, calls=options.count)
    found = {name: 1 / min(times) for name, times in seconds.items()}
    assert Account.recover_message(typed_data(), signature=receipt_signature) == checksum_address(KEY.node)
    print(
        f"Python {sys.version.split()[0]}, eth-account {version('eth-account')}, one thread, {len(frame)}-byte envelope"
    )
    for name, rate in found.items():
        print(f"{name:<40} {rate:>10,.0f} /s")
    print(f"{'pass the replay guard':<40} {guard_rate(options.messages):>10,.0f} /s")
    ours, peer = list(found.values())[::2], list(found.values())[1::2]
    ratios = [our / their for our, their in zip(ours, peer, strict=True)]
    print("times as fast as eth-account: seal {:.1f}, open {:.1f}, sign {:.1f}, check {:.1f}".format(*ratios))
    print_result(sealed_per_s=f"{ours[0]:.0f}", opened_per_s=f"{ours[1]:.0f}", vs_eth_account=f"{min(ratios):.1f}")


if __name__ == "__main__":
    main()
