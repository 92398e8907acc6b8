"""Which settings a config class has: key, flag, variable, help, bounds and default of each.

A config is a frozen dataclass made with `@settings_class`. A field that is itself one is a section (a TOML table). The
text literal below a field is its help. pydantic checks the values. It is imported only when a config is loaded, because
importing it and building its validators takes longer than everything else that `--help` does; the settings are listed
from the type hints alone.
"""

import ast
import inspect
import sys
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval

from prime_protocol.errors import LocalError
from prime_runtime.redaction import Secret

if TYPE_CHECKING:
    from pydantic import TypeAdapter

C = TypeVar("C")
PREFIX = "PRIME_"
TYPE_NAMES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text"}
JSON_TYPES: dict[type, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string", "format": "path"},
    Secret: {"type": "string", "format": "password"},
}
COMMA_LIST = "comma-list"
FORMAT_NAMES = {"path": "path", "password": "secret", COMMA_LIST: "text, names separated by commas"}
UNIT_EXAMPLES = {"ms": "milliseconds, or 30s, 5min, 2h", "bytes": "bytes, or 40GB, 512MiB", "mb": "MiB, or 8GiB"}


class ConfigError(LocalError):
    """A setting is wrong or missing. The text names it, where it came from and what is allowed."""


def Between(low: float, high: float) -> Interval:
    """Bounds of a number, both ends allowed: `Annotated[int, Between(1, 65_535)]`."""
    return Interval(ge=low, le=high)


@dataclass(frozen=True, slots=True)
class CommaList:
    """A text of names with commas, for which a file may have a list: `Annotated[str, CommaList()]`."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings_class(cls: type[C]) -> type[C]:
    """A frozen dataclass whose attribute docstrings are the help of its settings."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"allow_inf_nan": False}  # type: ignore[attr-defined]
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value that can be set."""

    path: tuple[str, ...]
    schema: dict[str, Any]
    """JSON schema of the value, without the alternative `null`."""
    is_optional: bool
    default: Any
    """MISSING where the value must be given."""
    help: str

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def is_list(self) -> bool:
        return self.schema.get("type") == "array"

    @property
    def is_comma_list(self) -> bool:
        return self.schema.get("format") == COMMA_LIST

    @property
    def item(self) -> dict[str, Any]:
        """JSON schema of the value, or of each item of a list."""
        return self.schema["items"] if self.is_list else self.schema

    @property
    def is_secret(self) -> bool:
        return self.item.get("format") == "password"

    @property
    def is_path(self) -> bool:
        return self.item.get("format") == "path"

    @property
    def is_bool(self) -> bool:
        return self.schema.get("type") == "boolean"

    @property
    def unit(self) -> str | None:
        """The unit that ends the name of a number, where text with a unit is understood: ms, bytes, mb."""
        if self.item.get("type") not in ("integer", "number"):
            return None
        return next((word for word in reversed(self.path[-1].split("_")) if word in UNIT_EXAMPLES), None)

    def allowed(self) -> str:
        """What may stand there, in words."""
        item = self.item
        if "enum" in item:
            words = ("a list of " if self.is_list else "one of ") + ", ".join(item["enum"])
        else:
            name = FORMAT_NAMES.get(item.get("format", "")) or TYPE_NAMES[item["type"]]
            words = f"a list of {name}" if self.is_list else f"one {name}"
        if "minimum" in item:
            words += f" from {item['minimum']} to {item['maximum']}"
        if self.unit:
            words += f" ({UNIT_EXAMPLES[self.unit]})"
        return words + (", or nothing" if self.is_optional else "")


def get_adapter(config: type[C]) -> "TypeAdapter[C]":
    """What checks values of this class; building it takes milliseconds, so it is kept."""
    key: Any = config
    adapter: TypeAdapter[C] = _build_adapter(key)
    return adapter


@cache
def _build_adapter(config: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(config)


def list_settings(config: type) -> tuple[Setting, ...]:
    """All settings of a config class, sections included, in the order they are written."""
    key: Any = config
    return _list_settings(key)


@cache
def _list_settings(config: Any) -> tuple[Setting, ...]:
    settings = tuple(_walk(config, ()))
    variables = [setting.variable for setting in settings]
    assert len(set(variables)) == len(variables), f"two settings of {config.__name__} share an environment variable"
    return settings


def _walk(config: type, above: tuple[str, ...]) -> list[Setting]:
    hints, texts, found = get_type_hints(config, include_extras=True), _read_help(config), list[Setting]()
    for field in fields(config):
        path, hint = (*above, field.name), hints[field.name]
        if isinstance(hint, type) and is_dataclass(hint):
            found += _walk(hint, path)
            continue
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        types = [each for each in options if each is not NoneType]
        assert len(types) == 1, f"{'.'.join(path)}: a setting has one type, or that type and None"
        default = field.default if field.default_factory is MISSING else field.default_factory()
        is_optional, text = len(options) > 1, " ".join(texts.get(field.name, "").split())
        found.append(
            Setting(path=path, schema=_describe_type(types[0]), is_optional=is_optional, default=default, help=text)
        )
    return found


def _describe_type(hint: Any) -> dict[str, Any]:
    """JSON schema of a type that a setting may have."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        described = _describe_type(inner)
        for note in notes:
            if isinstance(note, Interval):
                described = described | {"minimum": note.ge, "maximum": note.le}
            elif isinstance(note, CommaList):
                described = described | {"format": COMMA_LIST}
        return described
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _describe_type(get_args(hint)[0])}
    if issubclass(hint, Enum):
        return {"type": "string", "enum": [each.value for each in hint]}
    return JSON_TYPES[hint]


def _read_help(config: type) -> dict[str, str]:
    """The text literal below each field of a config class, its inherited fields included."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        tree = _parse_module(base.__module__) if is_dataclass(base) else None
        for statement in tree.body if tree else ():
            if not isinstance(statement, ast.ClassDef) or statement.name != base.__name__:
                continue
            for field, below in pairwise(statement.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        texts[name] = text
    return texts


@cache
def _parse_module(name: str) -> ast.Module | None:
    """None for a module without source, such as one that was typed in."""
    try:
        return ast.parse(inspect.getsource(sys.modules[name]))
    except (KeyError, OSError, TypeError):
        return None
