"""A validator that judges without reading: the answers of an engine's check, made up. Nothing is computed.

Every file is found good, as most are, and the looks are drawn from what looks are like.
"""

import numpy as np

from prime_node.engine import frame_values as values
from prime_node.engine.child import Inbox, Outbox
from prime_node.engine.frames import CheckWanted, LooksFrame
from prime_node.engine.measuring import Claim, RowNumbers, cut_spans
from prime_node.engine.seam import Engine
from prime_protocol.constants import LOOKS, TOPLOC_CHUNK_TOKENS, TOPLOC_K
from prime_protocol.looks import pack_looks
from prime_protocol.toploc_verify import ChunkReport

PERFECT = ChunkReport(
    k=TOPLOC_K,
    exponent_mismatches=0,
    sign_mismatches=0,
    mantissa_error_sum=0,
    mantissa_error_median=0,
    decoy_hits=0,
    exponents_seen=8,
    collisions=0,
    leading_zeros=0,
)


def check_unread(engine: Engine, request: CheckWanted, inbox: Inbox, outbox: Outbox) -> None:
    """In the place of the engine's own check."""
    for frame in request.claims:
        outbox.send(values.from_numbers(praise(values.to_claim(frame))))
    dice = np.random.default_rng(int.from_bytes(request.submission[:8], "big"))
    for reader in request.readers:
        outbox.send(LooksFrame(reader=reader, looks=pack_looks(dice.normal(0.0, 1.0, LOOKS))))


def praise(claim: Claim) -> RowNumbers:
    """What an honest row would give."""
    tokens = len(claim.text.output)
    nothing = np.zeros(tokens)
    return RowNumbers(
        row=claim.text.number,
        tokens=tokens,
        chunks=(PERFECT,) * -(-tokens // TOPLOC_CHUNK_TOKENS),
        proof_problem="",
        spans=tuple(cut_spans(nothing, nothing)),
        margin_max=0.0,
        margin_at=0,
        margin_sum=0.0,
        logprob_error_max=0.0,
        logprob_error_at=0,
        logprob_error_sum=0.0,
        eos_logprob=0.0,
    )
