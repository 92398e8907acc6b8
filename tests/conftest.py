"""What holds for every test: figures that outlive the run, whose lines are counted, and Ctrl-C that reaches programs.

Tests start some thousand processes, and compiling our modules is a third of each start. So processes write bytecode,
whatever the shell says, and the garbage collector runs rarely among objects that stay.

A shell in the background ignores SIGINT for its children, and they for theirs.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

COUNTED = Path(__file__).parent / "unit/prime_protocol"
"""The tests that must reach every line and branch of the protocol by themselves."""

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.set_threshold(50_000, 20, 100)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Counting lines doubles the time of plain Python, so no other test's are counted.

    The marker `no_cover` does not do it in a worker of xdist: pytest-cov begins twice there, and ends once.
    """
    if item.path.is_relative_to(COUNTED):
        return (yield)
    counting = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(counting[0])
        threading.settrace(counting[1])


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """`figures("300 sockets: …")` says what was measured, in a line at the end of the run, whichever worker ran it."""
    return lambda line: record_property("figure", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    lines = [
        str(value)
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(lines):
            terminalreporter.write_line(line)
