"""What it costs to use a tokenizer in a process of its own, against the same library in this process.

    python bench/tokenizer.py [--rounds 20] [--prompts 8] [--answers 64] [--tokens 512]

A lease of `prompts` tasks with `answers` completions of `tokens` tokens encodes its prompts in one round trip and
decodes its answers in another. The vocabulary is made of 32,768 pieces of random letters.
"""

import json
import random
from statistics import median

from benchmark import BenchmarkParser, print_result, take_turns, timed
from tokenizers import Tokenizer

from prime_runtime.tokenizer_process import TokenizerLimits, TokenizerProcess

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 32_768
PROMPT_CHARS = 1_000


def make_tokenizer(rng: random.Random) -> bytes:
    """Byte-pair encoding, each piece made of two earlier ones."""
    pieces, known, merges = list(LETTERS), set(LETTERS), []
    while len(pieces) < VOCABULARY:
        left, right = rng.choice(pieces), rng.choice(LETTERS)
        if left + right not in known:
            pieces.append(left + right)
            known.add(left + right)
            merges.append([left, right])
    model = {"type": "BPE", "vocab": {piece: number for number, piece in enumerate(pieces)}, "merges": merges}
    return json.dumps({"version": "1.0", "added_tokens": [], "decoder": {"type": "Fuse"}, "model": model}).encode()


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 20, 1)
    parser.add_size("--prompts", 8, 1)
    parser.add_size("--answers", 64, 2)
    parser.add_size("--tokens", 512, 8)
    args = parser.parse()
    rng = random.Random(1)
    file = make_tokenizer(rng)
    prompts = ["".join(rng.choices(LETTERS, k=PROMPT_CHARS)) for _ in range(args.prompts)]
    answers = [[rng.randrange(VOCABULARY) for _ in range(args.tokens)] for _ in range(args.answers)]
    library, process = Tokenizer.from_buffer(file), TokenizerProcess(file, "the file", limits=TokenizerLimits())
    start_s, _ = timed(lambda: process.decode([[1]]))
    works = {
        "library": lambda: (
            [library.encode(text, add_special_tokens=False).ids for text in prompts],
            [library.decode(tokens, skip_special_tokens=False) for tokens in answers],
        ),
        "process": lambda: (process.encode(prompts), process.decode(answers)),
        "round trip": lambda: process.decode([[1]]),
    }
    assert works["library"]() == works["process"]()
    found_ms = {name: 1000 * median(each) for name, each in take_turns(works, rounds=args.rounds, warm_up=True).items()}
    for name, each in found_ms.items():
        print(f"{name:<12}{each:8.2f} ms")
    print_result(
        start_ms=f"{1000 * start_s:.0f}",
        round_trip_ms=f"{found_ms['round trip']:.2f}",
        lease_ms=f"{found_ms['process']:.2f}",
        library_ms=f"{found_ms['library']:.2f}",
        added_ms=f"{found_ms['process'] - found_ms['library']:.2f}",
    )


if __name__ == "__main__":
    main()
