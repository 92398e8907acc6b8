"""How far the read proofs of two readers of the same file differ, by the engine of each, and how far a guess differs.

    python bench/read_proofs.py [--model FOLDER] [--rows 32] [--tokens 64] [--readers 300]

Without --model it uses the tiny model. Each kind of reader reads what the worker wrote. A row of the table is the root
mean square error of its read proofs against those of a reader in float32, over many readers; `refuted` is how many of
them the ledger would refute. It ends with RESULT honest_max= honest_refuted= unread_min= unread_passed=.
"""

import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
from benchmark import BenchmarkParser

from prime_lab.cheats.models import cut_layers, quantise_fp8, quantise_int4, quantise_int8, write_modified_checkpoint
from prime_node.engine.interface import ForwardResult, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.constants import READ_PROOF_BYTES, READ_PROOF_ERROR_MAX, READ_PROOF_PROBES
from prime_protocol.proofs.read_proofs import (
    BlockProjections,
    ReadProofRequest,
    compute_read_proof_error,
    encode_read_proof,
    is_read_proof_refuted,
)
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.wire.ids import Digest, NodeId
from prime_trainer.model.tiny import make_tiny_checkpoint

States = dict[int, Bits]
HONEST = ("float32, one row at a time", "bfloat16, read twice", "bfloat16, rounded")
UNREAD = ("zeros", "drawn at random", "another reader's", "of another file")
PROMPT_TOKENS = 12


def open_engine(checkpoint: Path, precision: str = "float32", threads: int = 2) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision=precision, threads=threads)
    engine.load(checkpoint)
    return engine


def write_texts(engine: TorchEngine, rows: int, sampling: Sampling, seed: int) -> list[TokenSequence]:
    dice = np.random.default_rng(seed)
    prompts = dice.integers(0, engine.facts.vocabulary, (rows, PROMPT_TOKENS)).astype(np.int32)
    orders = [
        GenerateRequest(number=number, prompt=prompt, seed=number + seed) for number, prompt in enumerate(prompts)
    ]
    return [
        TokenSequence(number=done.number, prompt=prompts[done.number], output=done.tokens, seed=done.number + seed)
        for done in engine.generate(orders, sampling)
    ]


def read(engine: TorchEngine, texts: list[TokenSequence], sampling: Sampling) -> States:
    return {found.number: found.hidden_bits for found in engine.read(texts, sampling)}


def read_rounded(engine: TorchEngine, texts: list[TokenSequence], sampling: Sampling) -> States:
    """As a validator that cannot read twice would."""

    def pick(found: ForwardResult) -> Bits:
        return found.hidden_bits if found.bf16_hidden_bits is None else found.bf16_hidden_bits

    return {found.number: pick(found) for found in engine.read(texts, sampling)}


def read_all(
    checkpoint: Path, texts: list[TokenSequence], sampling: Sampling, folder: Path
) -> Iterator[tuple[str, States]]:
    """Each kind of reader; the first is the one that others are compared with."""
    yield "float32", read(open_engine(checkpoint), texts, sampling)
    single = open_engine(checkpoint, threads=1)
    yield HONEST[0], {row: bits for text in texts for row, bits in read(single, [text], sampling).items()}
    yield HONEST[1], read(open_engine(checkpoint, "bfloat16"), texts, sampling)
    yield HONEST[2], read_rounded(open_engine(checkpoint, "bfloat16"), texts, sampling)
    for name, bend in (
        ("8-bit weights", quantise_int8),
        ("8-bit floats", quantise_fp8),
        ("4-bit weights", quantise_int4),
    ):
        yield name, read(open_engine(write_modified_checkpoint(checkpoint, folder / name, bend)), texts, sampling)
    yield "half of the layers", read(open_engine(cut_layers(checkpoint, folder / "half")), texts, sampling)


def take(states: States, submission: Digest, reader: NodeId) -> bytes:
    looker = BlockProjections(ReadProofRequest(submission, (reader,)), [len(states[row]) for row in range(len(states))])
    for row, bits in states.items():
        looker.add_row(row, bits)
    return encode_read_proof(looker.finish()[reader])


def compare(found: dict[str, States], other: States, readers: int) -> dict[str, list[tuple[float, bool]]]:
    """Error, and whether it is refuted, of each kind of reader's read proofs, for each reader."""
    exact, dice = found["float32"], np.random.default_rng(1)
    rows: dict[str, list[tuple[float, bool]]] = {}
    for number in range(readers):
        name = sha256(str(number).encode()).digest()
        submission, reader, stranger = Digest(name), NodeId(name[:20]), NodeId(name[-20:])
        true = take(exact, submission, reader)
        said = {kind: take(states, submission, reader) for kind, states in found.items() if kind != "float32"}
        made_up = (bytes(READ_PROOF_BYTES), encode_read_proof(dice.normal(0.0, 1.0, READ_PROOF_PROBES)))
        said |= dict(
            zip(UNREAD, (*made_up, take(exact, submission, stranger), take(other, submission, reader)), strict=True)
        )
        for kind, proof in said.items():
            rows.setdefault(kind, []).append(
                (compute_read_proof_error(proof, true), is_read_proof_refuted(proof, true))
            )
    return rows


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_argument("--model", type=Path, help="folder of a dense model (default: the tiny one)")
    parser.add_size("--rows", 32, 4)
    parser.add_size("--tokens", 64, 32)
    parser.add_size("--readers", 300, 3)
    args = parser.parse()
    sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=args.tokens)
    with tempfile.TemporaryDirectory(prefix="prime-read-proofs-") as scratch:
        folder = Path(scratch)
        checkpoint = args.model or make_tiny_checkpoint(folder / "tiny", vocabulary=64)
        worker = open_engine(checkpoint)
        texts, others = (write_texts(worker, args.rows, sampling, seed) for seed in (7, 8))
        rows = compare(
            dict(read_all(checkpoint, texts, sampling, folder)), read(worker, others, sampling), args.readers
        )
    print(f"{args.readers} readers of {args.rows} rows of {args.tokens} tokens; refuted above {READ_PROOF_ERROR_MAX}")
    print(f"{'reader':<28}{'median':>8}{'least':>8}{'most':>8}{'refuted':>9}")
    for kind, found in rows.items():
        errors = [error for error, _ in found]
        refuted = sum(is_so for _, is_so in found)
        print(f"{kind:<28}{np.median(errors):>8.4f}{min(errors):>8.4f}{max(errors):>8.4f}{refuted:>9}")
    tell(rows)


def tell(rows: dict[str, list[tuple[float, bool]]]) -> None:
    honest, unread = ([each for kind in kinds for each in rows[kind]] for kinds in (HONEST, UNREAD))
    print(
        f"RESULT honest_max={max(error for error, _ in honest):.3f} honest_refuted={sum(is_so for _, is_so in honest)}"
        f" unread_min={min(error for error, _ in unread):.3f} unread_passed={sum(not is_so for _, is_so in unread)}"
    )


if __name__ == "__main__":
    main()
