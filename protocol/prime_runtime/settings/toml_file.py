"""The TOML config file: read whole, bounded, with the line of each key for error texts.

What the keys mean is loader.py's work.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_runtime.settings.schema import ConfigError

FILE_BYTES_MAX = 2**20
HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
ASSIGNMENT = re.compile(r"\s*([\w.-]+)\s*=")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed file, with the line of each key as far as a plain scan finds it."""

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int]

    def place(self, key: str) -> str:
        return f"{self.name} line {self.lines[key]}" if key in self.lines else self.name


def read_file(toml: Path | bytes | None) -> TomlFile:
    if toml is None:
        return TomlFile("no file", {}, {})
    name = "the given TOML" if isinstance(toml, bytes) else str(toml)
    try:
        raw = toml if isinstance(toml, bytes) else toml.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the config file {name}: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"the config file {name} has {len(raw)} bytes, the limit is {FILE_BYTES_MAX}")
    try:
        text = raw.decode()
        return TomlFile(name, tomllib.loads(text), _find_lines(text))
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {name} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the config file {name} is not TOML: {error}") from None


def _find_lines(text: str) -> dict[str, int]:
    """Line of each key. A key seen twice stands in a longer text somewhere, so its line is left out."""
    lines: dict[str, int] = {}
    twice: set[str] = set()
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            table = header[1] + "."
        elif assignment := ASSIGNMENT.match(line):
            key = table + assignment[1]
            if key in lines:
                twice.add(key)
            lines[key] = number
    return {key: number for key, number in lines.items() if key not in twice}
