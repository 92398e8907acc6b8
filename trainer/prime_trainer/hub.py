"""Models by name: a folder on this machine, or a name on the Hugging Face hub, whose files are fetched once.

Only what a run may use is fetched: shape, tokenizer, end tokens, prompt and safetensors. Nothing of it is run as code.
"""

import re
from pathlib import Path

from prime_protocol.errors import LocalError

NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>\w[\w./-]*))?")
FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "prompt.txt",
    "*.safetensors",
    "*.safetensors.index.json",
]


def find_model(given: Path, cache: Path | None = None) -> Path:
    """The folder of a model. A name is owner/model, or owner/model@revision; `cache` is the hub's own by default."""
    if given.exists():
        return given
    name = NAME.fullmatch(str(given))
    if name is None:
        raise LocalError(f"there is no folder {given}, and it is no name on the hub either (owner/model)")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(name["repository"], revision=name["revision"], allow_patterns=FILES, cache_dir=cache)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise LocalError(
            f"there is no folder {given}, and the hub did not give a model of that name: {reason}. Without a network, "
            f"bring the folder from a machine that has one (`hf download {name['repository']}`) and name it here"
        ) from None
    return Path(found)
