"""The commands in the documentation: found in its blocks, split as a shell splits them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
PROGRAMS = ("prime-node", "prime-coordinator", "prime-trainer")
FENCE = re.compile(r"^\s*```(\w*)\s*$")
SHELL_MARKS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>"}
WIDE_GAP = re.compile(r" {3,}(?=[^\s#])")
"""Some blocks explain a command in a second column."""


@dataclass(frozen=True)
class DocCommand:
    """One command of a page."""

    page: str
    line: int
    words: tuple[str, ...]
    is_whole: bool
    """From an `sh` block, which a reader types as it stands. Other blocks may leave arguments out."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {shlex.join(self.words)}"


@dataclass(frozen=True)
class DocBlock:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str


def list_blocks(page: str) -> Iterator[DocBlock]:
    language, start, lines = None, 0, list[str]()
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and language is None:
            language, start, lines = fence[1], number, []
        elif fence:
            yield DocBlock(page, start, language or "", "\n".join(lines))
            language = None
        else:
            lines.append(line)


def list_commands(block: DocBlock) -> Iterator[DocCommand]:
    """Lines of `sh` blocks, and lines of blocks without a language that begin with one of our programs."""
    if block.language not in ("sh", ""):
        return
    number, lines = block.line, iter(block.text.split("\n"))
    for line in lines:
        number += 1
        first, typed = number, line.removeprefix("$ ")
        if typed.lstrip().split(" ")[0] not in PROGRAMS:
            continue
        while typed.endswith("\\"):
            typed = f"{typed[:-1].rstrip()} {next(lines).strip()}"
            number += 1
        yield DocCommand(block.page, first, split_command(WIDE_GAP.split(typed.strip())[0]), block.language == "sh")


def split_command(line: str) -> tuple[str, ...]:
    """The words up to the first pipe or redirection."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in SHELL_MARKS:
            break
        words.append(word)
    return tuple(words)


def list_all_commands() -> list[DocCommand]:
    return [command for page in PAGES for block in list_blocks(page) for command in list_commands(block)]
