"""Which settings a config dataclass has: name, type, bounds, default, help, environment variable and flag of each.

A config is a frozen dataclass. A field that is itself a dataclass is a section (a TOML table). The text literal below
a field is its help. Reading values is settings_values.py's work.

One setting's value: from a TOML value, or from the text of an environment variable or a flag, into its type.

Refusals are ValueError with words fit to follow the setting's name; settings.py adds where the value came from.
"""

import ast
import inspect
import math
import re
import textwrap
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date, datetime, time
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from prime_protocol.errors import LocalError
from prime_runtime.redaction import MASK, Secret

SCALARS = (bool, int, float, str, Path, Secret)


class ConfigError(LocalError):
    """A setting is wrong or missing. The text names it, where it came from and what is allowed."""


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both ends allowed: `Annotated[int, Between(1, 65_535)]`."""

    low: int | float
    high: int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value that can be set."""

    path: tuple[str, ...]
    scalar: Any
    """bool, int, float, str, Path, Secret or a StrEnum: the type of the value, or of each item of a list."""
    is_list: bool
    is_optional: bool
    bounds: Between | None
    default: Any
    """MISSING where the value must be given."""
    help: str

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return "PRIME_" + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    def allowed(self) -> str:
        """What may stand there, in words."""
        words = f"a list of {_describe_scalar(self.scalar)}" if self.is_list else f"one {_describe_scalar(self.scalar)}"
        if issubclass(self.scalar, StrEnum):
            words = ("a list of " if self.is_list else "one of ") + ", ".join(self.scalar)
        if self.bounds:
            words += f" from {self.bounds.low} to {self.bounds.high}"
        return words + (", or nothing" if self.is_optional else "")


def list_settings(config: type, above: tuple[str, ...] = ()) -> list[Setting]:
    """All settings of a config class, sections included, in the order they are written."""
    assert is_dataclass(config), f"{config} is not a dataclass"
    assert config.__dataclass_params__.frozen, f"{config.__name__} is not frozen"  # type: ignore[attr-defined]
    hints, texts = get_type_hints(config, include_extras=True), _help_texts(config)
    settings: list[Setting] = []
    for field in fields(config):
        path, kind = (*above, field.name), hints[field.name]
        if is_dataclass(kind):
            assert isinstance(kind, type)
            settings += list_settings(kind, path)
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        settings.append(_setting(path, kind, default, texts.get(field.name, "")))
    variables = [setting.variable for setting in settings]
    assert len(set(variables)) == len(variables), f"two settings of {config.__name__} share an environment variable"
    return settings


def _setting(path: tuple[str, ...], kind: Any, default: Any, text: str) -> Setting:
    bounds: Between | None = None
    is_optional = is_list = False
    while get_origin(kind):
        if get_origin(kind) is Annotated:
            kind, bounds = get_args(kind)
        elif get_origin(kind) in (Union, types.UnionType):
            (kind,) = (option for option in get_args(kind) if option is not type(None))
            is_optional = True
        else:
            assert get_origin(kind) is tuple, f"{'.'.join(path)}: {kind} cannot be a setting"
            assert get_args(kind)[1:] == (...,), f"{'.'.join(path)}: write tuple[X, ...]"
            kind, is_list = get_args(kind)[0], True
    assert kind in SCALARS or issubclass(kind, StrEnum), f"{'.'.join(path)}: {kind} cannot be a setting"
    return Setting(
        path=path, scalar=kind, is_list=is_list, is_optional=is_optional, bounds=bounds, default=default, help=text
    )


def _describe_scalar(scalar: Any) -> str:
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", Secret: "secret"}
    return names.get(scalar, "word")


def _help_texts(config: type) -> dict[str, str]:
    """The text literals below the fields, inherited ones too."""
    parts = [part for part in reversed(config.__mro__) if is_dataclass(part)]
    return {name: text for part in parts for name, text in _own_help_texts(part).items()}


@cache
def _own_help_texts(config: type) -> dict[str, str]:
    """A program without its source has no help, and nothing breaks."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(config))).body[0]
    except (OSError, TypeError):
        return {}
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


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


def format_value(value: Any) -> str:
    """A setting's value for people."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(format_value(item) for item in value) + "]"
        case Secret():
            return MASK
        case str() | Path():
            return repr(str(value))
        case _:
            return str(value)
