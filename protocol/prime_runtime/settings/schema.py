"""Which settings a config class has: key, flag, variable, help, bounds and default of each.

A config is a frozen dataclass made with `@settings_class`. A field that is itself one is a section (a TOML table). The
text literal below a field is its help. pydantic reads types, bounds and help; it is imported only when a config is
loaded or its flags are listed, because importing it takes longer than everything else that `--help` does.
"""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform, get_type_hints

from annotated_types import Interval

from prime_protocol.errors import LocalError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

C = TypeVar("C")
PREFIX = "PRIME_"
TYPE_NAMES = {"boolean": "true or false", "integer": "whole number", "number": "number", "string": "text"}
FORMAT_NAMES = {"path": "path", "password": "secret"}
UNIT_EXAMPLES = {"ms": "milliseconds, or 30s, 5min, 2h", "bytes": "bytes, or 40GB, 512MiB", "mb": "MiB, or 8GiB"}


class ConfigError(LocalError):
    """A setting is wrong or missing. The text names it, where it came from and what is allowed."""


def Between(low: float, high: float) -> Interval:
    """Bounds of a number, both ends allowed: `Annotated[int, Between(1, 65_535)]`."""
    return Interval(ge=low, le=high)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings_class(cls: type[C]) -> type[C]:
    """A frozen dataclass whose attribute docstrings are the help of its settings."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.__pydantic_config__ = {"use_attribute_docstrings": True, "allow_inf_nan": False}  # type: ignore[attr-defined]
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
    document = get_adapter(config).json_schema(mode="validation")
    settings = tuple(_walk(config, document, document.get("$defs", {}), ()))
    variables = [setting.variable for setting in settings]
    assert len(set(variables)) == len(variables), f"two settings of {config.__name__} share an environment variable"
    return settings


def _walk(config: type, schema: dict[str, Any], named: dict[str, Any], above: tuple[str, ...]) -> list[Setting]:
    hints, found = get_type_hints(config), list[Setting]()
    for field in fields(config):
        path, inner = (*above, field.name), schema["properties"][field.name]
        if is_dataclass(hints[field.name]):
            found += _walk(hints[field.name], _follow(inner, named), named, path)
            continue
        options = [each for each in inner.get("anyOf", [inner]) if each.get("type") != "null"]
        assert len(options) == 1, f"{'.'.join(path)}: a setting has one type, or that type and None"
        value = _follow(options[0], named)
        if "items" in value:
            value = {**value, "items": _follow(value["items"], named)}
        default = field.default if field.default_factory is MISSING else field.default_factory()
        text = " ".join((inner.get("description") or _get_inherited_help(config, field.name)).split())
        found.append(Setting(path=path, schema=value, is_optional="anyOf" in inner, default=default, help=text))
    return found


def _get_inherited_help(config: type, name: str) -> str:
    """pydantic reads the docstrings of a class's own fields only."""
    for base in config.__mro__[1:]:
        if is_dataclass(base):
            found = get_adapter(base).json_schema()["properties"].get(name, {})
            if found.get("description"):
                return str(found["description"])
    return ""


def _follow(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """A schema in place of the reference to it."""
    for each in (schema, *schema.get("allOf", [])):
        if "$ref" in each:
            target: dict[str, Any] = named[each["$ref"].rpartition("/")[2]]
            return target
    return schema
