"""What `make demo` runs must end well, and must say what it is not."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "support/processes/one_step.py"


def test_demo_pays_the_honest_slashes_the_cheater_and_names_what_is_missing() -> None:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr
    for line in (
        "verdict: accept",
        "verdict: fraudulent",
        "60 tokens of the cheater's stake are burned",
        "patched copy is bit-exact",
        "every signature, author, rule and tile is valid",
        "4 nodes and a relay after",
        "Missing until later",
    ):
        assert line in done.stdout
