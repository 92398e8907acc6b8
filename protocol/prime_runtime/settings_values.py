"""One setting's value: from a TOML value, or from the text of an environment variable or a flag, into its type.

Refusals are ValueError with words fit to follow the setting's name; settings.py adds where the value came from.
"""

import math
import re
from datetime import date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import Any

from prime_runtime.secret import MASK, Secret
from prime_runtime.settings_schema import Setting

WORDS_TRUE, WORDS_FALSE = ("true", "1"), ("false", "0")
INTEGER = re.compile(r"-?[0-9]+(_[0-9]+)*")
NUMBER = re.compile(r"-?[0-9]+(_[0-9]+)*(\.[0-9]+)?([eE][+-]?[0-9]+)?")
DIGITS_MAX = 40
SECRET_CHARS_MIN = 8
"""Shorter is guessed, and blotting it out of the logs would blot out half the log."""
TOML_NAMES = {bool: "a boolean", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "a table"}


def read_toml_value(setting: Setting, raw: Any, home: str | None) -> Any:
    """A value as tomllib gives it."""
    if setting.is_list:
        if not isinstance(raw, list):
            raise ValueError(f"is {_toml_name(raw)}")
        return tuple(_check(setting, _from_toml(setting.scalar, item), home) for item in raw)
    return _check(setting, _from_toml(setting.scalar, raw), home)


def read_text_value(setting: Setting, raw: str | list[str], home: str | None) -> Any:
    """Text of an environment variable (lists with commas) or of a flag (lists by repeating it)."""
    if raw == "" and setting.is_optional:
        return None
    if setting.is_list:
        items = raw if isinstance(raw, list) else [item.strip() for item in raw.split(",") if item.strip()]
        return tuple(_check(setting, _from_text(setting.scalar, item), home) for item in items)
    assert isinstance(raw, str), "a flag that is not a list is given once"
    return _check(setting, _from_text(setting.scalar, raw), home)


def _from_toml(scalar: Any, raw: Any) -> Any:
    if scalar is float and type(raw) is int:
        return float(raw)
    expected = scalar if scalar in (bool, int, float) else str
    if type(raw) is not expected:
        raise ValueError(f"is {_toml_name(raw)}")
    return raw


def _from_text(scalar: Any, raw: str) -> Any:
    if scalar is bool:
        if raw.lower() not in WORDS_TRUE + WORDS_FALSE:
            raise ValueError(f"is {_shown(raw)}; write true or false")
        return raw.lower() in WORDS_TRUE
    if scalar in (int, float):
        if not (INTEGER if scalar is int else NUMBER).fullmatch(raw) or len(raw) > DIGITS_MAX:
            raise ValueError(f"is {_shown(raw)}")
        return scalar(raw)
    return raw


def _check(setting: Setting, value: Any, home: str | None) -> Any:
    """From a plain value of the right kind to the setting's own type, inside its bounds."""
    scalar = setting.scalar
    if scalar in (int, float):
        return _check_number(setting, value)
    if scalar is bool:
        return value
    if scalar is Secret:
        if len(value) < SECRET_CHARS_MIN:
            raise ValueError(f"has {len(value)} characters, a secret needs at least {SECRET_CHARS_MIN}")
        return Secret(value)
    if not value.isprintable():
        raise ValueError("has characters that cannot be printed")
    if scalar is Path:
        return _path(value, home)
    if issubclass(scalar, StrEnum):
        if value not in list(scalar):
            raise ValueError(f"is {_shown(value)}")
        return scalar(value)
    return value


def _check_number(setting: Setting, value: Any) -> Any:
    bounds = setting.bounds
    if not math.isfinite(value) or (bounds and not bounds.low <= value <= bounds.high):
        raise ValueError(f"is {value}")
    return value


def _path(text: str, home: str | None) -> Path:
    if not text:
        raise ValueError("is empty")
    if text == "~" or text.startswith("~/"):
        if not home:
            raise ValueError(f"is {_shown(text)}, but HOME is not set; write the whole path")
        return Path(home) / text[2:]
    return Path(text)


def _toml_name(raw: Any) -> str:
    if isinstance(raw, datetime | date | time):
        return "a date or time"
    return TOML_NAMES[type(raw)]


def _shown(text: str) -> str:
    """A value inside an error: quoted, bounded, nothing unprintable."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def show_value(value: Any) -> str:
    """A setting's value for people."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(show_value(item) for item in value) + "]"
        case Secret():
            return MASK
        case str() | Path():
            return repr(str(value))
        case _:
            return str(value)
