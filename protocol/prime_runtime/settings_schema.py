"""Which settings a config dataclass has: name, type, bounds, default, help, environment variable and flag of each.

A config is a frozen dataclass. A field that is itself a dataclass is a section (a TOML table). The text literal below
a field is its help. Reading values is settings_values.py's work.
"""

import ast
import inspect
import textwrap
import types
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from prime_protocol.errors import LocalError
from prime_runtime.secret import Secret

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
        words = f"a list of {_words(self.scalar)}" if self.is_list else f"one {_words(self.scalar)}"
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


def _words(scalar: Any) -> str:
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
