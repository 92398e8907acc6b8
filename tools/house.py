"""Counts the code base: `python tools/house.py` prints what has a limit, and ends with one RESULT line.

tests/test_tidy.py holds the same numbers to the same limits. Exit code 1 when a limit is exceeded.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("protocol", "node", "coordinator", "trainer", "lab")
LIMITS = {"folder_max": 20, "glossary": 60, "walk_files": 40, "duplicate_names": 25, "dead": 0}
WALK = "## One rollout, end to end"
MARKDOWN_COLUMNS_MAX = 120

OLD_WORDS = re.compile(
    r"\b(Crier|Saying|GossipHalf|Workshop|Wishes|Courier|Parcel|Shelf|Glance|Onlookers?|Letter|Scribe|\w+Desk|Recess"
    r"|Conduct|Slate|TempoConfig|Purse|Harvest|PlantRevealed|planted|looks_like_a_look|_mourn|gossip_voice|day_file"
    r"|Outcome\.(?:SOFT|HARD)|look/1|peer-card|standings|way_out|liars)\b"
)
"""Words of the old vocabulary that must not come back; docs/decisions/0010 has what replaced them."""

CALLED_BY_NAME = re.compile(
    r"(pause|resume|close)_run|(drain|ban|unban)_node|(un)?install_service"  # commands, joined from parts
    r"|KernelsHook|initialize"  # hatch
    r"|prime_\w+|PrimeWorker|is_argmax_invariant|update_state"  # vLLM
    r"|get_buffer|buffer_updated|eof_received|connection_lost|data_received"  # asyncio protocols
    r"|validate_msg|notify_subscriptions|opened_stream|closed_stream|listen_close"  # libp2p
    r"|__get_pydantic_\w+__|_missing_"
)
"""Names that a library or a joined string calls, so that no code here names them."""


def tracked(*patterns: str) -> list[str]:
    """Files of the repository, those that are not committed yet included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return sorted(name for name in set(names) if (ROOT / name).is_file())


def list_product_files() -> list[str]:
    return [name for name in tracked("*.py") if name.split("/")[0] in PACKAGES]


def count_modules_by_folder() -> Counter[str]:
    return Counter(str(Path(name).parent) for name in list_product_files() if not name.endswith("/__init__.py"))


def find_duplicate_class_names() -> dict[str, list[str]]:
    """Class names that more than one product file defines, private and nested ones included."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for name in list_product_files():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(name)
    return {name: found for name, found in files.items() if len(found) > 1}


def list_glossary_words() -> list[str]:
    return re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)


def list_walk_files() -> list[str]:
    """Files that the walk through one rollout names, each once."""
    _, _, walk = (ROOT / "docs/architecture.md").read_text().partition(WALK)
    return list(dict.fromkeys(re.findall(r"`([\w./-]+\.(?:py|sol))`", walk.partition("\n## ")[0])))


def list_mapped_folders() -> set[str]:
    """Folders that the map in docs/architecture.md names."""
    text = (ROOT / "docs/architecture.md").read_text()
    return {match.rstrip("/") for match in re.findall(r"^\| `([\w./-]+/)`", text, flags=re.MULTILINE)}


def find_dead_code() -> list[str]:
    """Functions, classes and methods that no product file or benchmark names; tests do not count as use."""
    command = [sys.executable, "-m", "vulture", *PACKAGES, "bench", "hatch_build.py", "--min-confidence", "60"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    named = _list_words_in_strings()
    dead = []
    for line in found:
        match = re.search(r"unused (function|class|method|property|import) '(\w+)'", line)
        if match and match[2] not in named and not CALLED_BY_NAME.fullmatch(match[2]):
            dead.append(line)
    return dead


def _list_words_in_strings() -> set[str]:
    """Identifiers inside short string literals: commands and attacks are found by such names."""
    words: set[str] = set()
    for name in list_product_files():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 60:
                words.update(re.findall(r"\w+", node.value))
    return words


def find_old_words() -> Iterator[str]:
    for name in list_product_files():
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            if match := OLD_WORDS.search(line):
                yield f"{name}:{number}: {match[0]}"


def find_wide_markdown() -> Iterator[str]:
    """Lines of prose over the limit. Tables, and addresses that cannot be broken, may be longer."""
    for name in tracked("*.md"):
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            is_table = line.lstrip().startswith("|")
            if len(line) > MARKDOWN_COLUMNS_MAX and not is_table and " " in line.strip()[:MARKDOWN_COLUMNS_MAX]:
                yield f"{name}:{number}: {len(line)} columns"


def count_house() -> dict[str, int]:
    files = list_product_files()
    return {
        "files": len(files),
        "lines": sum(len((ROOT / name).read_text().splitlines()) for name in files),
        "folder_max": max(count_modules_by_folder().values()),
        "glossary": len(list_glossary_words()),
        "walk_files": len(list_walk_files()),
        "duplicate_names": len(find_duplicate_class_names()),
        "dead": len(find_dead_code()),
    }


def main() -> int:
    for folder, count in count_modules_by_folder().most_common(5):
        print(f"{count:4} modules in {folder}")
    for name, files in sorted(find_duplicate_class_names().items()):
        print(f"class {name} in {', '.join(files)}")
    for line in find_dead_code():
        print(f"dead: {line}")
    counts = count_house()
    print("RESULT", " ".join(f"{name}={count}" for name, count in counts.items()))
    return int(any(counts[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
