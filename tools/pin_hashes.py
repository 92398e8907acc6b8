"""Write hashes.txt: what every file of the pinned releases must be, as an index says now.

    python tools/pin_hashes.py --index URL_OF_A_SIMPLE_INDEX

To be run after constraints.txt has changed, and its difference to be read before it is committed: a release whose files
change under the same number is what this is for. torch is left out: it has other files for each kind of machine.
"""

import argparse
import re
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch",)
TRIES = 5
HEAD = "# Made by tools/pin_hashes.py from constraints.txt, without torch.\n"
LINK = re.compile(r'<a [^>]*href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>')


def normalise(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """Version by name."""
    lines = [line for line in text.splitlines() if line and line[0] not in "# "]
    return {normalise(name): version for name, _, version in (line.split()[0].partition("==") for line in lines)}


def is_of(file: str, name: str, version: str) -> bool:
    """A wheel or an archive of this release."""
    stem = normalise(file.removesuffix(".zip").removesuffix(".tar.gz").removesuffix(".whl"))
    start = f"{name}-{normalise(version)}"
    return stem == start or (file.endswith(".whl") and stem.startswith(start + "-"))


def ask(url: str) -> str:
    for left in reversed(range(TRIES)):
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return str(response.read().decode())
        except OSError as error:
            if not left:
                raise SystemExit(f"{url}: {error}") from None
    raise AssertionError("the last try returns or raises")


def find_hashes(index: str, name: str, version: str) -> list[str]:
    page = ask(f"{index.rstrip('/')}/{name}/")
    found = sorted({digest for digest, file in LINK.findall(page) if is_of(file, name, version)})
    if not found:
        raise SystemExit(f"the index has no file of {name} {version}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", required=True, help="URL of a simple index")
    index = parser.parse_args().index
    pins = read_pins((ROOT / "constraints.txt").read_text())
    names = sorted(pins.keys() - set(LEFT_OUT))
    with ThreadPoolExecutor(4) as pool:
        hashes = list(pool.map(lambda name: find_hashes(index, name, pins[name]), names))
    lines = [
        " \\\n    ".join([f"{name}=={pins[name]}", *(f"--hash=sha256:{digest}" for digest in found)])
        for name, found in zip(names, hashes, strict=True)
    ]
    (ROOT / "hashes.txt").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
