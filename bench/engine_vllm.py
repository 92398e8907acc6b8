"""vLLM's side of bench/engine.py, run by the interpreter of .vllm/: plain vLLM, neither our sampling nor proofs.

    .vllm/bin/python bench/engine_vllm.py <checkpoint folder> <precision> <rows>

Reads one line of JSON for each run, [prompts, lengths], and answers `CPU_SECONDS <n>` once all are generated.
"""

import json
import sys
import time

from vllm import LLM, SamplingParams


def main(folder: str, precision: str, rows: str) -> None:
    llm = LLM(
        model=folder,
        dtype=precision,
        max_num_seqs=int(rows),
        enforce_eager=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
    )
    for line in sys.stdin:
        prompts, lengths = json.loads(line)
        params = [
            SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False) for length in lengths
        ]
        started = time.process_time()
        done = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        took_s = time.process_time() - started
        assert [len(request.outputs[0].token_ids) for request in done] == lengths
        print(f"CPU_SECONDS {took_s}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
