"""Hostile rollout files: whole files, and single pages and footers inside files that are otherwise consistent."""

from dataclasses import replace

import pytest

from fuzz.harness import assert_survives
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.layout import COLUMNS, MAGIC
from support.rollout_examples import HEADER, LIMITS, assemble, honest_file, pages_of, rollout, rollouts

HONEST = honest_file()
OTHER = write_rollouts(HEADER, [rollout(row.slot, row.sample, prompt=2, output=1, seed=1) for row in rollouts()])
NAMED = write_rollouts(HEADER, rollouts(), EngineClass("gpu-a/vllm-0.33/bfloat16/tp2"), names_class=True)
PAGES = pages_of(HONEST)
FOOTER_AT = len(HONEST) - 8 - int.from_bytes(HONEST[-8:-4], "little")


def read(data: bytes) -> None:
    """What is accepted must be the bytes that its content has."""
    file = read_rollouts(data, LIMITS)
    assert write_rollouts(file.header, file.rows) == data


def read_named(footer: bytes) -> None:
    """In format 2, whose footer names the class of the engine."""
    data = NAMED[:FOOTER_AT] + footer + len(footer).to_bytes(4, "little") + MAGIC
    file = read_rollouts(data, replace(LIMITS, names_class=True))
    assert write_rollouts(file.header, file.rows, file.engine_class, names_class=True) == data


def read_page(tagged: bytes) -> None:
    """Put a hostile body into the column that its first byte names; headers and footer agree with the body."""
    if not tagged:
        raise RemoteError("page", "no column named")
    column, body = COLUMNS[tagged[0] % len(COLUMNS)], tagged[1:]
    values = PAGES[column.name][0]
    if column.is_list:
        # The true count for honest levels, which are short; any count is as good for the others.
        values = max(0, len(body) - 10 - int.from_bytes(body[:4], "little") % 64) // 4
    read(assemble({**PAGES, column.name: (values, body)}))


def read_footer(footer: bytes) -> None:
    read(HONEST[:FOOTER_AT] + footer + len(footer).to_bytes(4, "little") + MAGIC)


@pytest.mark.fuzz
def test_no_file_breaks_the_reader() -> None:
    assert_survives(read, [HONEST, OTHER], seed=1)


@pytest.mark.fuzz
def test_no_page_breaks_the_reader() -> None:
    corpus = [bytes([number]) + PAGES[column.name][1] for number, column in enumerate(COLUMNS)]
    assert_survives(read_page, corpus, seed=2)


@pytest.mark.fuzz
def test_no_footer_breaks_the_reader() -> None:
    assert_survives(read_footer, [HONEST[FOOTER_AT:-8]], seed=3)
    assert_survives(read_named, [NAMED[FOOTER_AT:-8]], seed=4)
