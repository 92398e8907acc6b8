"""The house style, as far as a machine can check it: each check is a generator from a parsed file to complaints."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools import house
from tools.house import PACKAGES, ROOT, tracked
from tools.pin_hashes import LEFT_OUT, read_pins

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 50
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc", "manager", "base"}
UNFINISHED = ("TODO", "FIXME", "XXX", "NotImplementedError")
LONG_FILES = {
    "protocol/prime_protocol/constants.py",
    "protocol/prime_protocol/ledger/entries.py",
    "protocol/prime_protocol/ledger/state.py",
}
"""Every agreed number, entry and field of the state in one file is the point of these files."""
LONG_FUNCTIONS: set[str] = set()
"""Named exceptions to the length of a function, as path::name, each with its reason beside it."""


@dataclass(frozen=True)
class Source:
    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


PYTHON_FILES = tracked("*.py")
SOURCES = [name for name in PYTHON_FILES if name.startswith(PACKAGES)]
SCRIPTS = [name for name in PYTHON_FILES if not name.startswith(PACKAGES)]


def load(name: str) -> Source:
    text = (ROOT / name).read_text()
    return Source(name, text, ast.parse(text))


def has_docstring(source: Source) -> Iterator[str]:
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield "opens with no docstring that says what lives here"


def docstring_names_files_that_exist(source: Source) -> Iterator[str]:
    """A file that was merged or renamed must not live on in the docstrings of others."""
    for named in re.findall(r"[\w./-]+\.py\b", ast.get_docstring(source.tree) or ""):
        if not any(f"/{path}".endswith(f"/{named}") for path in PYTHON_FILES):
            yield f"its docstring names {named}, which does not exist"


def broad_handlers_are_marked(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = [name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)] if node.type else ["everything"]
        is_broad = {"Exception", "BaseException", "everything"} & set(names)
        if is_broad and "# boundary:" not in source.lines[node.lineno - 1]:
            yield f"line {node.lineno}: catches {', '.join(names)} without a '# boundary: why' comment"


def name_says_something(source: Source) -> Iterator[str]:
    if Path(source.path).stem in EMPTY_NAMES:
        yield "is named after nothing in the glossary"


def file_is_short(source: Source) -> Iterator[str]:
    if len(source.lines) > FILE_LINES_MAX and source.path not in LONG_FILES:
        yield f"has {len(source.lines)} lines, the limit is {FILE_LINES_MAX}: split by noun"


def functions_fit_a_screen(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        length = node.end_lineno - node.lineno + 1
        if length > FUNCTION_LINES_MAX and f"{source.path}::{node.name}" not in LONG_FUNCTIONS:
            yield f"line {node.lineno}: {node.name} has {length} lines, the limit is {FUNCTION_LINES_MAX}"


def nothing_is_unfinished(source: Source) -> Iterator[str]:
    for number, line in enumerate(source.lines, 1):
        if any(mark in line for mark in UNFINISHED):
            yield f"line {number}: marks unfinished work"


def environment_is_read_in_one_place(source: Source) -> Iterator[str]:
    """Only a command line reads the environment; everything else is handed its configuration."""
    path = Path(source.path)
    if path.name == "cli.py" or path.parent.name == "cli":
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
            yield f"line {node.lineno}: reads the environment"


CHECKS: list[Callable[[Source], Iterator[str]]] = [
    has_docstring,
    docstring_names_files_that_exist,
    broad_handlers_are_marked,
    name_says_something,
    file_is_short,
    functions_fit_a_screen,
    nothing_is_unfinished,
    environment_is_read_in_one_place,
]
SCRIPT_CHECKS = (has_docstring, docstring_names_files_that_exist, name_says_something)


@pytest.mark.parametrize("name", SOURCES)
def test_source_file_keeps_the_style(name: str) -> None:
    source = load(name)
    complaints = [f"{name}: {complaint}" for check in CHECKS for complaint in check(source)]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", SCRIPTS)
def test_test_or_bench_file_says_what_it_is_and_catches_narrowly(name: str) -> None:
    source = load(name)
    complaints = [f"{name}: {c}" for check in SCRIPT_CHECKS for c in check(source)]
    assert not complaints, "\n".join(complaints)


def test_no_tracked_file_names_a_folder_of_one_machine() -> None:
    hits = [
        name
        for name in tracked()
        if any(mark in (ROOT / name).read_bytes() for mark in (b"/ro" + b"ot/", b"/wo" + b"rk/"))
    ]
    assert not hits, hits


def test_every_decision_and_protocol_page_is_in_the_reading_order() -> None:
    index = (ROOT / "docs/README.md").read_text()
    missing = [
        name for name in tracked("docs/*.md") if name != "docs/README.md" and name.removeprefix("docs/") not in index
    ]
    assert not missing, f"docs/README.md does not lead to {missing}"


def test_every_pinned_release_has_its_hashes() -> None:
    pins, hashed = (read_pins((ROOT / name).read_text()) for name in ("constraints.txt", "hashes.txt"))
    assert hashed == {name: version for name, version in pins.items() if name not in LEFT_OUT}


# --- The whole code base: the limits of tools/house.py ----------------------------------------------------------------


def test_the_code_base_is_within_its_limits() -> None:
    counts = house.count_house()
    exceeded = {name: counts[name] for name, limit in house.LIMITS.items() if counts[name] > limit}
    assert not exceeded, f"{exceeded}: `python tools/house.py` lists what counts"


def test_no_product_file_uses_a_word_of_the_old_vocabulary() -> None:
    found = list(house.find_old_words())
    assert not found, "\n".join(found)


def test_markdown_is_wrapped() -> None:
    found = list(house.find_wide_markdown())
    assert not found, "\n".join(found)


def test_the_map_names_every_product_folder() -> None:
    missing = house.count_modules_by_folder().keys() - house.list_mapped_folders()
    assert not missing, f"docs/architecture.md does not name {sorted(missing)}"


def test_every_file_of_the_walk_and_every_folder_of_the_map_exists() -> None:
    named = [*house.list_walk_files(), *house.list_mapped_folders()]
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, f"docs/architecture.md names {missing}"


def test_every_package_says_what_lives_there() -> None:
    silent = [name for name in SOURCES if name.endswith("__init__.py") and not ast.get_docstring(load(name).tree)]
    assert not silent, f"no docstring in {silent}"
