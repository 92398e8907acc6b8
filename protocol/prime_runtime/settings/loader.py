"""A config from its sources: flags over environment over TOML file over defaults, into one frozen object.

Made once, at start, and passed in; nothing else reads the environment. Unknown names are refused, with the nearest
known one, and all problems are reported at once.
"""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from prime_protocol.errors import RemoteError
from prime_runtime.redaction import MASK, Secret
from prime_runtime.settings.schema import PREFIX, ConfigError, Setting, get_adapter, list_settings
from prime_runtime.settings.toml_file import TomlFile, read_file
from prime_runtime.settings.units import parse_amount

C = TypeVar("C")
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ResolvedConfig(Generic[C]):
    """A config, and where each of its values came from."""

    config: C
    sources: Mapping[str, str]


def load_config(
    config: type[C], flags: Mapping[str, Any], environ: Mapping[str, str], toml: Path | bytes | None = None
) -> C:
    """The config alone; `resolve_config` also returns where each value came from."""
    return resolve_config(config, flags, environ, toml).config


def resolve_config(
    config: type[C],
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    toml: Path | bytes | None = None,
    *,
    known: Mapping[str, Any] | None = None,
) -> ResolvedConfig[C]:
    """Read every source. `known` holds values by key that replace the defaults."""
    settings = {setting.key: setting for setting in list_settings(config)}
    file = read_file(toml)
    found, problems = _flatten(file, settings)
    problems += [*_unknown_flags(flags, settings), *_unknown_variables(environ, settings)]
    given: dict[str, Any] = {}
    sources = dict.fromkeys(settings, DEFAULT)
    for key, setting in settings.items():
        try:
            picked = _pick(setting, flags, environ, found, file)
            if picked is not None:
                given[key], sources[key] = picked
            elif known is not None and key in known:
                given[key] = known[key]
            elif setting.default is MISSING:
                problems.append(_describe_missing(setting))
        except ValueError as error:
            problems.append(f"{key} {error}; allowed is {setting.allowed()}")
        except ConfigError as error:
            problems.append(str(error))
    problems += _exposed_secrets(toml, settings, found)
    return ResolvedConfig(_validate(config, settings, given, sources, problems), sources)


def _pick(
    setting: Setting, flags: Mapping[str, Any], environ: Mapping[str, str], found: Mapping[str, Any], file: TomlFile
) -> tuple[Any, str] | None:
    """The value of the strongest source that has one, and that source."""
    home = environ.get("HOME")
    if setting.key in flags:
        if setting.is_secret:
            raise ConfigError(f"{setting.flag}: other users can see a command line; use {setting.variable} or the file")
        return _prepare(setting, _split_list(setting, flags[setting.key]), home), setting.flag
    if setting.variable in environ:
        return _prepare(setting, _split_list(setting, environ[setting.variable]), home), setting.variable
    if setting.key in found:
        return _prepare(setting, _join_list(setting, found[setting.key]), home), file.place(setting.key)
    return None


def _split_list(setting: Setting, raw: Any) -> Any:
    """A list in one text has commas; a flag that was repeated is a list already."""
    if not setting.is_list or not isinstance(raw, str):
        return raw
    return [item.strip() for item in raw.split(",") if item.strip()]


def _join_list(setting: Setting, raw: Any) -> Any:
    if setting.is_comma_list and isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        return ",".join(raw)
    return raw


def _prepare(setting: Setting, raw: Any, home: str | None) -> Any:
    """What pydantic does not do: units, `~`, nothing unprintable, empty text for None. ValueError follows the key."""
    if raw == "" and setting.is_optional:
        return None
    if isinstance(raw, list):
        return tuple(_prepare(setting, item, home) for item in raw)
    if not isinstance(raw, str):
        return raw
    if setting.unit:
        return parse_amount(raw, setting.unit)
    if not setting.is_secret and not raw.isprintable():
        raise ValueError("has characters that cannot be printed")
    if setting.is_path:
        return _expand_home(raw, home)
    return raw


def _expand_home(text: str, home: str | None) -> str:
    if not text:
        raise ValueError("is empty")
    if text != "~" and not text.startswith("~/"):
        return text
    if not home:
        raise ValueError(f"is {text!r}, but HOME is not set; write the whole path")
    return str(Path(home) / text[2:])


def _describe_missing(setting: Setting) -> str:
    ways = "" if setting.is_secret else f" or with {setting.flag}"
    return f"{setting.key} is missing: set it in the file, as {setting.variable}{ways}; {setting.allowed()}"


def _validate(
    config: type[C],
    settings: Mapping[str, Setting],
    given: Mapping[str, Any],
    sources: Mapping[str, str],
    problems: list[str],
) -> C:
    """The config object. Everything that is wrong is in one ConfigError."""
    from pydantic import ValidationError

    nested: dict[str, Any] = {}
    for key, setting in settings.items():
        table = nested
        for name in setting.path[:-1]:
            table = table.setdefault(name, {})
        if key in given:
            table[setting.path[-1]] = given[key]
    made: C | None = None
    try:
        made = get_adapter(config).validate_python(nested)
    except ValidationError as error:
        wrong = [_describe_wrong(each, settings, sources) for each in error.errors(include_url=False)]
        problems += [text for text in wrong if text is not None]
    except ConfigError as error:
        # A rule between fields: name the sources of the fields that its text mentions.
        named = [f"{key} from {sources[key]}" for key in given if settings[key].path[-1] in str(error).split()]
        problems.append(f"{error}" + (f" ({', '.join(named)})" if named else ""))
    if problems:
        raise ConfigError("\n".join(problems))
    assert made is not None
    return made


def _describe_wrong(error: Any, settings: Mapping[str, Setting], sources: Mapping[str, str]) -> str | None:
    """One line for one error of pydantic; None for a missing value, which is told already."""
    if error["type"] == "missing":
        return None
    path = [part for part in error["loc"] if isinstance(part, str)]
    key = next(key for key in (".".join(path[:size]) for size in range(len(path), 0, -1)) if key in settings)
    setting = settings[key]
    value = MASK if setting.is_secret else _shorten(error["input"])
    message = error["msg"].removeprefix("Value error, ")
    return f"{key} is {value}: {message} (from {sources[key]}); allowed is {setting.allowed()}"


def _shorten(value: Any) -> str:
    """A value inside an error: quoted, bounded, nothing unprintable."""
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _flatten(file: TomlFile, settings: Mapping[str, Setting]) -> tuple[dict[str, Any], list[str]]:
    """Tables to dotted keys; a key that is neither a setting nor a table with settings is a problem."""
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


def _suggest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _exposed_secrets(
    toml: Path | bytes | None, settings: Mapping[str, Setting], found: Mapping[str, Any]
) -> Iterator[str]:
    """A file that holds a secret may be read by its owner only."""
    if not isinstance(toml, Path) or toml.stat().st_mode & 0o077 == 0:
        return
    for key in found:
        if settings[key].is_secret:
            yield f"{key} is a secret, and others may read {toml}: chmod 600 it, or use {settings[key].variable}"


def get_value(config: Any, setting: Setting) -> Any:
    for name in setting.path:
        config = getattr(config, name)
    return config


def list_values(resolved: ResolvedConfig[Any]) -> list[tuple[str, str, str]]:
    """Key, value as people read it, and source of each setting; secrets are hidden."""
    return [
        (setting.key, show_value(get_value(resolved.config, setting)), resolved.sources[setting.key])
        for setting in list_settings(type(resolved.config))
    ]


def describe_config(resolved: ResolvedConfig[Any]) -> list[str]:
    """One line for each setting: key, value, source. Fit for a terminal and for a log."""
    return [f"{key} = {value}  ({source})" for key, value, source in list_values(resolved)]


def show_value(value: Any) -> str:
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
