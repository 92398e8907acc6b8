"""Logs: both forms, fields, UTC, one line for each record, nothing secret, hostile or endless in it."""

import io
import json
import logging
import resource
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.logs import LogConfig, LogFormat, LogLevel, configure_logging
from prime_runtime.redaction import Secret

KEY = "4c0883a69102937d6231471b5dbb6204fe5129617082792ae468d01a3f362318"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def logger() -> Any:
    """A logger of its own, so that no other test sees its handlers."""
    made = logging.Logger("test")
    yield made
    for handler in made.handlers:
        handler.close()


def record(logger: logging.Logger, say: Callable[[], object], form: LogFormat = LogFormat.JSON) -> str:
    stream = io.StringIO()
    config = LogConfig(format=form, level=LogLevel.DEBUG)
    configure_logging(config, stream=stream, secrets=[Secret("correct horse")], logger=logger)
    say()
    return stream.getvalue()


def read(logger: logging.Logger, say: Callable[[], object]) -> dict[str, Any]:
    text = record(logger, say)
    assert text.count("\n") == 1
    line: dict[str, Any] = json.loads(text)
    return line


def fail(text: str) -> None:
    raise ValueError(text)


def log_failure(logger: logging.Logger, text: str) -> None:
    try:
        try:
            fail(text)
        except ValueError as error:
            raise ExceptionGroup("both", [error, KeyError("k")]) from error
    except ExceptionGroup:
        logger.exception("it broke")


def test_a_json_line_has_time_level_message_and_fields(logger: logging.Logger) -> None:
    line = read(
        logger, lambda: logger.warning("lease %d of %s", 7, "ada", extra={"slots": 3, "ratio": 0.5, "ok": True})
    )
    assert line["time"].endswith("Z")
    assert line["time"][10] == "T"
    assert (line["level"], line["logger"], line["message"]) == ("warning", "test", "lease 7 of ada")
    assert line["fields"] == {"slots": 3, "ratio": 0.5, "ok": True}
    assert "fields" not in read(logger, lambda: logger.info("plain"))


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.PRETTY])
def test_hostile_text_forges_no_line_and_commands_no_terminal(logger: logging.Logger, form: LogFormat) -> None:
    evil = 'x\n2026-01-01 INFO all good\r\x1b[2J\u202e"}'
    text = record(logger, lambda: logger.info("peer says %s", evil, extra={"said": evil, evil: 1}), form)
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    if form is LogFormat.JSON:
        line = json.loads(text)
        assert line["message"].isprintable()
        assert all(part.isprintable() for part in line["fields"])


@pytest.mark.parametrize("form", [LogFormat.JSON, LogFormat.PRETTY])
def test_secrets_and_private_keys_never_appear(logger: logging.Logger, form: LogFormat) -> None:
    def say() -> None:
        logger.info("opened with %s and 0x%s", "correct horse", KEY, extra={"a": "correct horse", KEY: KEY})
        logger.info(f"key {KEY}")
        log_failure(logger, f"bad key {KEY}, passphrase correct horse")

    text = record(logger, say, form)
    assert KEY not in text
    assert "horse" not in text


def test_a_digest_is_shown_whole_where_its_type_is_known(logger: logging.Logger) -> None:
    digest = Digest(bytes.fromhex(KEY))
    line = read(logger, lambda: logger.info("shard %s", digest, extra={"root": digest}))
    assert line["message"] == f"shard {digest}"
    assert line["fields"] == {"root": str(digest)}


def test_an_exception_is_one_json_line_with_its_causes(logger: logging.Logger) -> None:
    parts = read(logger, lambda: log_failure(logger, "a\nb"))["exception"]
    assert [part["type"] for part in parts] == ["builtins.ExceptionGroup", "builtins.ValueError", "builtins.KeyError"]
    assert parts[1]["text"] == "a\\nb"
    assert parts[1]["frames"][-1].endswith(" fail")


def test_a_pretty_exception_is_indented_below_its_line(logger: logging.Logger) -> None:
    first, *below = record(logger, lambda: log_failure(logger, "a\nb"), LogFormat.PRETTY).splitlines()
    assert " ERROR   it broke" in first
    assert all(line.startswith("    ") for line in below)
    assert any("ValueError: a\\nb" in line for line in below)


def test_a_loop_of_causes_ends(logger: logging.Logger) -> None:
    def say() -> None:
        one, two = ValueError("one"), ValueError("two")
        one.__cause__, two.__cause__ = two, one
        logger.error("x", exc_info=one)

    assert len(read(logger, say)["exception"]) == 2


def test_a_suppressed_context_stays_out(logger: logging.Logger) -> None:
    def say() -> None:
        try:
            try:
                fail("inner")
            except ValueError:
                raise KeyError("outer") from None
        except KeyError:
            logger.exception("x")

    assert len(read(logger, say)["exception"]) == 1


def test_an_exception_that_cannot_be_shown_is_still_logged(logger: logging.Logger) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    line = read(logger, lambda: logger.error("x", exc_info=Broken()))
    assert line["exception"][0]["text"] == "(its __str__ failed)"


def test_a_line_is_bounded(logger: logging.Logger) -> None:
    fields = {f"f{number}": "y" * 10_000 for number in range(200)}
    text = record(logger, lambda: logger.info("\x1b" * 1_000_000, extra={**fields, "huge": 10**500}))
    assert len(text) < 4096 * 2 + 32 * 600 + 500
    json.loads(text)


def test_mapping_arguments_work(logger: logging.Logger) -> None:
    assert read(logger, lambda: logger.info("%(a)s", {"a": 1}))["message"] == "1"


def test_the_form_follows_the_terminal(logger: logging.Logger) -> None:
    for stream, is_json in [(Terminal(), False), (io.StringIO(), True)]:
        configure_logging(LogConfig(), stream=stream, logger=logger)
        logger.info("hello")
        logger.debug("not shown")
        assert stream.getvalue().startswith("{") is is_json
        assert stream.getvalue().count("\n") == 1


def test_the_file_is_private_json_and_rotates(logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "node.log"
    config = LogConfig(file=path, file_bytes_max=2**16, files_max=2)
    configure_logging(config, stream=io.StringIO(), logger=logger)
    for _ in range(100):
        logger.info("z" * 3000)
    files = sorted(tmp_path.rglob("node.log*"))
    assert len(files) == 3
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.stat().st_size <= 2**16
        assert [json.loads(line) for line in file.read_text().splitlines()]


def test_a_log_file_that_cannot_be_written_is_explained(logger: logging.Logger, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"cannot write the log file .*; see the setting log.file"):
        configure_logging(LogConfig(file=tmp_path / "file" / "x.log"), stream=io.StringIO(), logger=logger)


def test_a_disk_that_is_full_is_said_once_and_stops_nothing(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(file=tmp_path / "node.log"), stream=stream, logger=logger)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        for number in range(3):
            logger.info("line %d", number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        # What could not be written waits in the file's buffer; it goes where it can now.
    said = capsys.readouterr().err
    assert said.count("cannot be written") == 1
    assert "Traceback" not in said
    assert len(stream.getvalue().splitlines()) == 3, "the terminal still has everything"


def test_a_terminal_can_show_less_than_the_file(logger: logging.Logger, tmp_path: Path) -> None:
    stream, path = io.StringIO(), tmp_path / "node.log"
    configure_logging(LogConfig(file=path), stream=stream, logger=logger, stream_level=LogLevel.WARNING)
    logger.info("for the file")
    logger.warning("for both")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["for both"]
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["for the file", "for both"]
