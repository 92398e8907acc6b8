"""Logging: pretty lines for a terminal or JSON lines for a machine, in UTC, redacted and escaped.

The fields of a record come from `extra={...}`. Each record is one line, except that the pretty form prints the frames
of an exception below it. Values of type Digest are printed in full; redaction.py says why.
"""

import json
import logging
import logging.handlers
import os
import sys
import traceback
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.redaction import PUBLIC_MARK, Redactor, Secret
from prime_runtime.settings.schema import Between, settings_class

MESSAGE_CHARS_MAX = 4096
FIELD_CHARS_MAX = 512
FIELDS_MAX = 32
FRAMES_MAX = 30
CAUSES_MAX = 8
"""Exceptions printed of one chain or group."""

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogFormat(StrEnum):
    AUTO = "auto"
    PRETTY = "pretty"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@settings_class
class LogConfig:
    """The section [log] of every program."""

    level: LogLevel = LogLevel.INFO
    """Lowest severity that is logged."""
    format: LogFormat = LogFormat.AUTO
    """Output format; auto is pretty on a terminal and json elsewhere."""
    file: Path | None = None
    """Also write JSON lines to this file."""
    file_bytes_max: Annotated[int, Between(2**16, 2**34)] = 64 * 2**20
    """Size at which the file is rotated."""
    files_max: Annotated[int, Between(1, 100)] = 5
    """Rotated files to keep besides the current one."""


def configure_logging(
    config: LogConfig,
    *,
    stream: TextIO,
    secrets: Iterable[Secret] = (),
    logger: logging.Logger | None = None,
    stream_level: LogLevel | None = None,
) -> None:
    """Replace the handlers of a logger, by default the root logger. `stream_level` limits the stream, not the file."""
    logger = logger or logging.getLogger()
    redactor = Redactor(secrets)
    is_json = config.format is LogFormat.JSON or (config.format is LogFormat.AUTO and not stream.isatty())
    terminal = logging.StreamHandler(stream)
    terminal.setFormatter(JsonFormatter(redactor) if is_json else PrettyFormatter(redactor))
    if stream_level is not None:
        terminal.setLevel(stream_level.upper())
    handlers: list[logging.Handler] = [terminal]
    if config.file is not None:
        handlers.append(_open_file(config, config.file, redactor))
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(config.level.upper())
    # One line per request would drown the rest; the metrics count requests.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, fields, exception."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record, self._redactor),
        }
        if fields := _clean_fields(record, self._redactor):
            line["fields"] = fields
        if error := _error_of(record):
            line["exception"] = _describe_error(error, self._redactor)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


class PrettyFormatter(logging.Formatter):
    """For people: time, level, message, fields; the frames of an exception on indented lines below."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        fields = _clean_fields(record, self._redactor)
        tail = "".join(f"  {name}={value}" for name, value in fields.items())
        lines = [f"{_utc(record)} {record.levelname:<7} {_message(record, self._redactor)}{tail}"]
        for part in _describe_error(error, self._redactor) if (error := _error_of(record)) else []:
            lines.append(f"    {part['type']}: {part['text']}")
            lines += [f"      at {frame}" for frame in part["frames"]]
        return "\n".join(lines)


def _utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord, redactor: Redactor) -> str:
    args = record.args
    if isinstance(args, tuple):
        args = tuple(_mark(arg) for arg in args)
    text = str(record.msg) % args if args else str(record.msg)
    return redactor.clean(text, MESSAGE_CHARS_MAX)


def _mark(value: Any) -> Any:
    return PUBLIC_MARK + str(value) if isinstance(value, Digest) else value


def _clean_fields(record: logging.LogRecord, redactor: Redactor) -> dict[str, Any]:
    """The fields of the call. Numbers stay numbers; everything else becomes bounded text."""
    own = [(name, value) for name, value in vars(record).items() if name not in STANDARD_FIELDS]
    clean: dict[str, Any] = {}
    for name, value in own[:FIELDS_MAX]:
        is_plain = value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63)
        clean[redactor.clean(name, FIELD_CHARS_MAX)] = (
            value if is_plain else redactor.clean(str(_mark(value)), FIELD_CHARS_MAX)
        )
    return clean


def _error_of(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _describe_error(error: BaseException, redactor: Redactor) -> list[dict[str, Any]]:
    """The exception, its causes and the members of a group, each once."""
    parts: list[dict[str, Any]] = []
    waiting, seen = [error], {id(error)}
    while waiting and len(parts) < CAUSES_MAX:
        current = waiting.pop(0)
        frames = traceback.extract_tb(current.__traceback__)[-FRAMES_MAX:]
        parts.append(
            {
                "type": redactor.clean(f"{type(current).__module__}.{type(current).__qualname__}", FIELD_CHARS_MAX),
                "text": redactor.clean(_text_of(current), MESSAGE_CHARS_MAX),
                "frames": [redactor.clean(f"{f.filename}:{f.lineno} {f.name}", FIELD_CHARS_MAX) for f in frames],
            }
        )
        before = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        members = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        for other in (*members, before):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
    return parts


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # boundary: a broken __str__ of a foreign exception must not lose the record
        return "(its __str__ failed)"


class _PrivateFile(logging.handlers.RotatingFileHandler):
    """Rotated files with mode 0600."""

    is_broken = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Report a full disk once on stderr; the program continues."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self.is_broken:
            self.is_broken = True
            sys.stderr.write(f"the log file {self.baseFilename} cannot be written: {error.strerror}\n")

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
        )


def _open_file(config: LogConfig, path: Path, redactor: Redactor) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = _PrivateFile(path, maxBytes=config.file_bytes_max, backupCount=config.files_max)
    except OSError as error:
        raise LocalError(f"cannot write the log file {path}: {error.strerror}; see the setting log.file") from None
    handler.setFormatter(JsonFormatter(redactor))
    return handler
