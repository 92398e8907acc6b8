"""The TOML config file: read whole, bounded, with the line of each key for error texts.

What the keys mean is settings.py's work.

Command-line flags made from a config dataclass. They only carry text; settings.py reads and checks it.

Configuration: flags over environment over TOML file over defaults, into one frozen dataclass.

Made once, at start, and passed in; nothing else reads the environment. Unknown names are refused, with the nearest
known one.

A config written back as a TOML file, with the help of each setting as a comment.
"""

import argparse
import difflib
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from prime_protocol.errors import RemoteError
from prime_runtime.redaction import Secret
from prime_runtime.settings.schema import (
    Between,
    ConfigError,
    Setting,
    format_value,
    list_settings,
    read_text_value,
    read_toml_value,
)

FILE_BYTES_MAX = 2**20
HEADER = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
ASSIGNMENT = re.compile(r"\s*([\w.-]+)\s*=")


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed file, with the line of each key as far as a plain scan finds it."""

    name: str
    values: dict[str, Any]
    lines: Mapping[str, int]

    def place(self, key: str) -> str:
        return f"{self.name} line {self.lines[key]}" if key in self.lines else self.name


def read_toml_file(toml: Path | bytes | None) -> TomlFile:
    if toml is None:
        return TomlFile("no file", {}, {})
    name = "the given TOML" if isinstance(toml, bytes) else str(toml)
    try:
        raw = toml if isinstance(toml, bytes) else toml.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the config file {name}: {error.strerror}") from None
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(f"the config file {name} has {len(raw)} bytes, the limit is {FILE_BYTES_MAX}")
    try:
        text = raw.decode()
        return TomlFile(name, tomllib.loads(text), _find_lines(text))
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {name} is not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the config file {name} is not TOML: {error}") from None


def _find_lines(text: str) -> dict[str, int]:
    """Line of each key. A key seen twice stands in a longer text somewhere, so its line is left out."""
    lines: dict[str, int] = {}
    twice: set[str] = set()
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            table = header[1] + "."
        elif assignment := ASSIGNMENT.match(line):
            key = table + assignment[1]
            if key in lines:
                twice.add(key)
            lines[key] = number
    return {key: number for key, number in lines.items() if key not in twice}


def add_flags(parser: argparse.ArgumentParser, config: type) -> None:
    """A flag for each setting but the secrets. Values stay text; `load_config` reads and checks them."""
    for setting in list_settings(config):
        if setting.scalar is Secret:
            continue
        shown = "" if setting.default is MISSING else f" Default: {format_value(setting.default)}."
        text = f"{setting.help} ({setting.allowed()}; {setting.variable}){shown}".strip().replace("%", "%%")
        if setting.scalar is bool and not setting.is_list:
            parser.add_argument(
                setting.flag,
                dest=setting.key,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=text,
            )
        else:
            parser.add_argument(
                setting.flag,
                dest=setting.key,
                action="append" if setting.is_list else "store",
                metavar=setting.path[-1].upper(),
                default=argparse.SUPPRESS,
                help=text,
            )


def read_flags(parsed: argparse.Namespace, config: type) -> dict[str, Any]:
    """The settings among the parsed arguments, as `load_config` takes them."""
    known = {setting.key for setting in list_settings(config)}
    return {key: value for key, value in vars(parsed).items() if key in known}


__all__ = [
    "Between",
    "ConfigError",
    "ResolvedConfig",
    "Secret",
    "add_flags",
    "describe_config",
    "list_secrets",
    "list_values",
    "load_config",
    "read_flags",
    "resolve_config",
]

C = TypeVar("C")
PREFIX = "PRIME_"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ResolvedConfig(Generic[C]):
    """A config, and where each of its values came from."""

    config: C
    sources: Mapping[str, str]


def load_config(
    config: type[C], flags: Mapping[str, Any], environ: Mapping[str, str], toml: Path | bytes | None = None
) -> C:
    """The config alone; `resolve_config` also tells where each value came from."""
    return resolve_config(config, flags, environ, toml).config


def resolve_config(
    config: type[C], flags: Mapping[str, Any], environ: Mapping[str, str], toml: Path | bytes | None = None
) -> ResolvedConfig[C]:
    """Read every source; all that is wrong is told at once."""
    settings = {setting.key: setting for setting in list_settings(config)}
    file = read_toml_file(toml)
    found, problems = _flatten(file, settings)
    problems += [*_unknown_flags(flags, settings), *_unknown_variables(environ, settings)]
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, setting in settings.items():
        try:
            values[key], sources[key] = _pick(setting, flags, environ, found, file)
        except ConfigError as error:
            problems.append(str(error))
    problems += _exposed_secrets(toml, settings, found)
    if problems:
        raise ConfigError("\n".join(problems))
    return ResolvedConfig(_build(config, (), values, sources), sources)


def _pick(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], found: Mapping[str, Any], file: TomlFile
) -> tuple[Any, str]:
    """The value of the strongest source that has one. A weaker one is not looked at."""
    home = environ.get("HOME")
    raw: Any
    if setting.key in flags:
        raw, source, read = flags[setting.key], setting.flag, read_text_value
        if setting.scalar is Secret:
            raise ConfigError(f"{setting.flag}: others can see a command line; use {setting.variable} or the file")
        if isinstance(raw, bool):
            return raw, source
    elif setting.variable in environ:
        raw, source, read = environ[setting.variable], setting.variable, read_text_value
    elif setting.key in found:
        raw, source, read = found[setting.key], file.place(setting.key), read_toml_value
    elif setting.default is not MISSING:
        return setting.default, DEFAULT
    else:
        raise ConfigError(
            f"{setting.key} is missing: set it in the file, as {setting.variable}"
            + ("" if setting.scalar is Secret else f" or with {setting.flag}")
            + f"; {setting.allowed()}"
        )
    return _read_value(setting, source, lambda: read(setting, raw, home)), source


def _read_value(setting: Setting, source: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError as error:
        raise ConfigError(f"{setting.key} {error} (from {source}); allowed is {setting.allowed()}") from None


def _build(config: type[C], above: tuple[str, ...], values: Mapping[str, Any], sources: Mapping[str, str]) -> C:
    hints = get_type_hints(config)
    given: dict[str, Any] = {}
    for field in fields(config):  # type: ignore[arg-type]
        path = (*above, field.name)
        if is_dataclass(hints[field.name]):
            given[field.name] = _build(hints[field.name], path, values, sources)
        else:
            given[field.name] = values[".".join(path)]
    try:
        return config(**given)
    except ConfigError as error:
        keys = [".".join((*above, name)) for name in given]
        chosen = [f"{key} from {sources[key]}" for key in keys if sources.get(key, DEFAULT) != DEFAULT]
        raise ConfigError(f"{error}" + (f" ({', '.join(chosen)})" if chosen else "")) from None


def _flatten(file: TomlFile, settings: Mapping[str, Setting]) -> tuple[dict[str, Any], list[str]]:
    """Tables to dotted keys; a key that is no setting, nor a table with settings, is a problem."""
    sections = {
        ".".join(setting.path[:depth]) for setting in settings.values() for depth in range(1, len(setting.path))
    }
    found: dict[str, Any] = {}
    problems: list[str] = []

    def walk(table: Mapping[str, Any], above: str) -> None:
        for name, value in table.items():
            key = above + name
            if key in settings:
                found[key] = value
            elif key in sections and isinstance(value, dict):
                walk(value, key + ".")
            elif key in sections:
                problems.append(f"{key} in {file.place(key)} is a section: write [{key}] and its keys below")
            else:
                problems.append(f"{key!r} in {file.place(key)} is not a setting{_suggest(key, {*settings, *sections})}")

    walk(file.values, "")
    return found, problems


def _unknown_flags(flags: Mapping[str, Any], settings: Mapping[str, Setting]) -> Iterator[str]:
    for key in flags:
        if key not in settings:
            yield f"the flag {key!r} is not a setting{_suggest(key, settings)}"


def _unknown_variables(environ: Mapping[str, str], settings: Mapping[str, Setting]) -> Iterator[str]:
    """Refuse what was meant for us: in a section of ours, or near a known name. Other programs share the prefix."""
    known = {setting.variable for setting in settings.values()}
    sections = tuple({PREFIX + setting.path[0].upper() + "_" for setting in settings.values() if len(setting.path) > 1})
    for name in environ:
        if not name.startswith(PREFIX) or name in known:
            continue
        near = _suggest(name, known)
        if near or name.startswith(sections):
            yield f"the environment variable {name} is not a setting{near}"


def _suggest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _exposed_secrets(
    toml: Path | bytes | None, settings: Mapping[str, Setting], found: Mapping[str, Any]
) -> Iterator[str]:
    """A file that holds a secret may be read by its owner only."""
    if not isinstance(toml, Path) or toml.stat().st_mode & 0o077 == 0:
        return
    for key in found:
        if settings[key].scalar is Secret:
            yield f"{key} is a secret, and others may read {toml}: chmod 600 it, or use {settings[key].variable}"


def list_values(resolved: ResolvedConfig[Any]) -> list[tuple[str, str, str]]:
    """Name, value as people read it, and source of each setting; secrets are hidden."""
    rows: list[tuple[str, str, str]] = []
    for setting in list_settings(type(resolved.config)):
        value = resolved.config
        for name in setting.path:
            value = getattr(value, name)
        rows.append((setting.key, format_value(value), resolved.sources[setting.key]))
    return rows


def describe_config(resolved: ResolvedConfig[Any]) -> list[str]:
    """One line for each setting: name, value, where it came from. Fit for a terminal and for a log."""
    return [f"{key} = {value}  ({source})" for key, value, source in list_values(resolved)]


def check_parsed(config: Any, parsers: Mapping[str, Callable[[str], object]]) -> None:
    """ConfigError where a setting's parser refuses its text."""
    for name, parse in parsers.items():
        try:
            parse(getattr(config, name))
        except RemoteError as error:
            raise ConfigError(f"{name} {error.problem}") from None


def list_secrets(config: Any) -> list[Secret]:
    """Every secret in a config, for the log's redaction."""
    if isinstance(config, Secret):
        return [config]
    if isinstance(config, tuple):
        return [secret for item in config for secret in list_secrets(item)]
    if is_dataclass(config):
        return [secret for field in fields(config) for secret in list_secrets(getattr(config, field.name))]
    return []


def render_config(config: Any, *, always: Collection[str] = (), never: Collection[str] = ()) -> str:
    """The settings that are not the default, as TOML. Secrets stay out: they belong into the environment.

    `always` and `never` name settings that are shown, or left out, whatever they are.
    """
    sections: dict[str, list[str]] = {}
    for setting in list_settings(type(config)):
        value: Any = config
        for name in setting.path:
            value = getattr(value, name)
        is_default = setting.default is not MISSING and value == setting.default
        is_shown = setting.key in always or not is_default
        if not is_shown or setting.scalar is Secret or setting.key in never or value is None:
            continue
        section, name = ".".join(setting.path[:-1]), setting.path[-1]
        sections.setdefault(section, []).append(f"# {setting.help}\n{name} = {_toml(value)}\n")
    parts = ["".join(sections.pop("", []))]
    parts += [f"[{section}]\n" + "".join(lines) for section, lines in sections.items()]
    return "\n".join(parts)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
