"""The files of a checkpoint besides its tensors: model shape, end tokens, tokenizer, prompt template.

The files come from the run's trainer and are untrusted: bounded size, strict JSON, and nothing in them may name code to
run. The tokenizer is used in a process of its own (tokenizer_process.py). This module needs neither torch nor
transformers, so the daemon can tokenize prompts without an engine.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prime_protocol.constants import (
    CHECKPOINT_BYTES_MAX,
    OUTPUT_TOKENS_MAX,
    PROMPT_TOKENS_MAX,
    TENSORS_MAX,
    VOCAB_SIZE_MAX,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, digest_fields
from prime_protocol.wire.strict_json import parse_json
from prime_runtime.tokenizer_process import DEFAULT_LIMITS, TokenizerLimits, TokenizerProcess

CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE, PROMPT_FILE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "prompt.txt",
)
BYTES_MAX = {CONFIG_FILE: 2**20, GENERATION_FILE: 2**16, TOKENIZER_FILE: 64 * 2**20, PROMPT_FILE: 2**16}
"""The largest public tokenizer.json (262,000 tokens) has 33 MB; a configuration rarely has 10 kB."""
OPTIONAL_FILES = frozenset({GENERATION_FILE, PROMPT_FILE})

PROMPT_PLACEHOLDER = "{prompt}"
"""Where prompt.txt takes the prompt of the task."""

EOS_MAX = 64
"""Maximum number of end tokens. Public models name up to five."""

CODE_KEYS = ("auto_map", "custom_pipelines", "trust_remote_code")
QUANTIZATION_KEYS = ("quantization_config", "compression_config")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# Model families use different names for the same number.
VOCABULARY_KEYS = ("vocab_size",)
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model")
LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len", "n_ctx")
UNBOUNDED_FAMILIES = ("falcon_mamba", "mamba", "mamba2")
"""Their state takes any number of tokens, so their configurations name no limit and the protocol's limit applies."""
UNBOUNDED_CONTEXT_TOKENS = PROMPT_TOKENS_MAX + OUTPUT_TOKENS_MAX


@dataclass(frozen=True)
class ModelFiles:
    """The files of a checkpoint folder, parsed and checked."""

    folder: Path
    config: dict[str, Any]
    """config.json; nothing in it names code."""
    architecture: str
    family: str
    """The model_type of the configuration."""
    eos: frozenset[int]
    vocabulary: int
    hidden: int
    layers: int
    context_max: int
    """Maximum number of tokens of prompt and output together."""
    digest: Digest
    tokenizer_json: bytes
    prompt_text: str | None
    tokenizer_limits: TokenizerLimits = DEFAULT_LIMITS

    @classmethod
    def open(cls, folder: Path) -> "ModelFiles":
        """LocalError names the file that is missing, broken or not allowed."""
        contents = read_model_files(folder)
        try:
            return cls.parse(folder, contents)
        except RemoteError as error:
            raise LocalError(f"the checkpoint in {folder} cannot be used: {error}") from None

    @classmethod
    def parse(cls, folder: Path, contents: dict[str, bytes]) -> "ModelFiles":
        config = parse_object(CONFIG_FILE, contents[CONFIG_FILE])
        generation = parse_object(GENERATION_FILE, contents.get(GENERATION_FILE, b"{}"))
        reject_remote_code(config)
        vocabulary = parse_number(config, VOCABULARY_KEYS, VOCAB_SIZE_MAX)
        return cls(
            folder=folder,
            config=config,
            architecture=parse_architecture(config),
            family=parse_name(config, "model_type"),
            eos=parse_eos(generation, config, vocabulary),
            vocabulary=vocabulary,
            hidden=parse_number(config, HIDDEN_KEYS, CHECKPOINT_BYTES_MAX),
            layers=parse_number(config, LAYERS_KEYS, TENSORS_MAX),
            context_max=parse_context_length(config),
            digest=digest_contents(contents),
            tokenizer_json=contents[TOKENIZER_FILE],
            prompt_text=parse_prompt(contents[PROMPT_FILE]) if PROMPT_FILE in contents else None,
        )

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Tokens of the prompts of tasks, each inserted into prompt.txt if there is one. Use a thread: it may wait."""
        template = self.prompt_text
        return self.encode_texts(
            [prompt if template is None else template.replace(PROMPT_PLACEHOLDER, prompt) for prompt in prompts]
        )

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts as they are. LocalError where one has none, or one that the model does not have."""
        found = self.tokenizer.encode(texts)
        for text, tokens in zip(texts, found, strict=True):
            if not tokens:
                raise LocalError(f"{TOKENIZER_FILE} of {self.folder} gives no tokens for the text {text[:80]!r}")
            if max(tokens) >= self.vocabulary:
                raise LocalError(
                    f"{TOKENIZER_FILE} of {self.folder} gives token {max(tokens)}, the model has {self.vocabulary}"
                )
        return found

    def decode(self, token_lists: Sequence[Sequence[int]]) -> list[str]:
        """Texts of lists of tokens, including the end token. Use a thread: it may wait."""
        return self.tokenizer.decode(token_lists)

    @cached_property
    def tokenizer(self) -> TokenizerProcess:
        """Its process starts on first use: an engine never needs it, and a large file takes seconds to read."""
        name = f"{TOKENIZER_FILE} of {self.folder}"
        return TokenizerProcess(self.tokenizer_json, name, limits=self.tokenizer_limits)


def digest_model_files(folder: Path) -> Digest:
    """The digest in a run's terms: names and bytes of the files."""
    return digest_contents(read_model_files(folder))


def digest_contents(contents: dict[str, bytes]) -> Digest:
    fields = [part for name in sorted(contents) for part in (name.encode(), contents[name])]
    return digest_fields("model-files/1", *fields)


def read_model_files(folder: Path) -> dict[str, bytes]:
    contents = {name: read_bounded(folder / name, BYTES_MAX[name]) for name in BYTES_MAX}
    for name, content in contents.items():
        if content is None and name not in OPTIONAL_FILES:
            raise LocalError(f"{folder} has no {name}; a checkpoint needs it beside its tensors")
    return {name: content for name, content in contents.items() if content is not None}


def read_bounded(path: Path, bytes_max: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    if len(content) > bytes_max:
        raise LocalError(f"{path} is larger than {bytes_max} bytes")
    return content


def parse_object(name: str, text: bytes) -> dict[str, Any]:
    value = parse_json(name, text)
    if not isinstance(value, dict):
        raise RemoteError(name, "is not an object")
    return value


def parse_prompt(text: bytes) -> str:
    try:
        prompt = text.decode()
    except UnicodeDecodeError:
        raise RemoteError(PROMPT_FILE, "is not UTF-8") from None
    if prompt.count(PROMPT_PLACEHOLDER) != 1:
        raise RemoteError(PROMPT_FILE, f"must hold {PROMPT_PLACEHOLDER} exactly once")
    return prompt


def reject_remote_code(config: dict[str, Any]) -> None:
    """Reject a configuration that names code to fetch and run, or quantized weights."""
    for key in CODE_KEYS:
        if key in config:
            raise RemoteError(f"{CONFIG_FILE}.{key}", "asks for code of the model's own, which is never run")
    for key in QUANTIZATION_KEYS:
        if config.get(key) is not None:
            raise RemoteError(f"{CONFIG_FILE}.{key}", "asks for quantized weights; publish them in bfloat16")


def parse_architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise RemoteError(f"{CONFIG_FILE}.architectures", "must be a list with one name")
    return parse_name({"architectures": names[0]}, "architectures")


def parse_name(config: dict[str, Any], key: str) -> str:
    name = config.get(key)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RemoteError(f"{CONFIG_FILE}.{key}", "must be a plain name")
    return name


def parse_number(config: dict[str, Any], keys: tuple[str, ...], most: int) -> int:
    for key in keys:
        if key in config:
            return check_number(f"{CONFIG_FILE}.{key}", config[key], least=1, most=most)
    raise RemoteError(f"{CONFIG_FILE}.{keys[0]}", "is missing")


def parse_context_length(config: dict[str, Any]) -> int:
    is_endless = config.get("model_type") in UNBOUNDED_FAMILIES and not any(key in config for key in CONTEXT_KEYS)
    return UNBOUNDED_CONTEXT_TOKENS if is_endless else parse_number(config, CONTEXT_KEYS, CHECKPOINT_BYTES_MAX)


def check_number(field: str, value: Any, *, least: int, most: int) -> int:
    # `type is`, because JSON's true is an int to isinstance.
    if type(value) is not int or not least <= value <= most:
        raise RemoteError(field, f"must be a whole number from {least} to {most}")
    return value


def parse_eos(generation: dict[str, Any], config: dict[str, Any], vocabulary: int) -> frozenset[int]:
    """The end tokens of generation_config.json, else of config.json. A model may have none."""
    for name, source in ((GENERATION_FILE, generation), (CONFIG_FILE, config)):
        value, field = source.get("eos_token_id"), f"{name}.eos_token_id"
        if value is None:
            continue
        tokens = value if isinstance(value, list) else [value]
        if len(tokens) > EOS_MAX:
            raise RemoteError(field, f"names {len(tokens)} tokens, the limit is {EOS_MAX}")
        return frozenset(check_number(field, token, least=0, most=vocabulary - 1) for token in tokens)
    return frozenset()
