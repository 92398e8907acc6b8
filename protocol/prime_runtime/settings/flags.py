"""Command-line flags and a commented TOML file, made from a config class.

Flags only carry text; loader.py reads and checks it. `--help` shows the flags that people use (`common`), by group;
`--help-all` shows all of them.
"""

import argparse
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from prime_runtime.cli import HELP_ALL
from prime_runtime.settings.loader import get_value, show_value
from prime_runtime.settings.schema import UNIT_EXAMPLES, Setting, list_settings

COMMENT_COLUMNS = 100
Groups = Mapping[str, Sequence[str]]
"""Title of a group of flags to the keys of its settings."""


def add_flags(
    parser: argparse.ArgumentParser, config: type, common: Groups | None = None, *, show_all: bool = False
) -> None:
    """A flag for each setting but the secrets. Without `show_all`, help lists only those in `common`."""
    groups = common or {}
    titled = {title: parser.add_argument_group(title) for title in groups}
    placed = {key: titled[title] for title, keys in groups.items() for key in keys}
    assert placed.keys() <= {setting.key for setting in list_settings(config)}, "a common flag is not a setting"
    rest: dict[str, Any] = {}
    for setting in list_settings(config):
        if setting.is_secret:
            continue
        target = placed.get(setting.key)
        if target is None:
            title = f"section [{'.'.join(setting.path[:-1])}]" if setting.path[1:] else "other settings"
            target = rest.get(title) or rest.setdefault(title, parser.add_argument_group(title))
        is_shown = show_all or not groups or setting.key in placed
        target.add_argument(setting.flag, **_describe_flag(setting, is_shown=is_shown, is_long=show_all))
    if groups:
        text = f"show all {len(list_settings(config))} settings"
        parser.add_argument(HELP_ALL, action=_HelpAll, nargs=0, default=argparse.SUPPRESS, help=text)


class _HelpAll(argparse.Action):
    """Prints the help of a parser that was built with every flag shown."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        parser.print_help()
        parser.exit()


def _describe_flag(setting: Setting, *, is_shown: bool, is_long: bool) -> dict[str, Any]:
    default = "" if setting.default is MISSING or setting.default in ((), None, "") else show_value(setting.default)
    unit = f" ({UNIT_EXAMPLES[setting.unit]})" if setting.unit else ""
    details = f" ({setting.allowed()}; {setting.variable})" if is_long else unit
    text = f"{setting.help}{details}" + (f" Default: {default}." if default else "")
    described: dict[str, Any] = {
        "dest": setting.key,
        "default": argparse.SUPPRESS,
        "help": text.strip().replace("%", "%%") if is_shown else argparse.SUPPRESS,
    }
    if setting.is_bool:
        return described | {"action": argparse.BooleanOptionalAction}
    name = "{" + ",".join(setting.item["enum"]) + "}" if "enum" in setting.item else setting.path[-1].upper()
    return described | {"action": "append" if setting.is_list else "store", "metavar": name}


def read_flags(parsed: argparse.Namespace, config: type) -> dict[str, Any]:
    """The settings among the parsed arguments, as `load_config` takes them."""
    known = {setting.key for setting in list_settings(config)}
    return {key: value for key, value in vars(parsed).items() if key in known}


def render_config(config: Any, *, always: Collection[str] = (), never: Collection[str] = ()) -> str:
    """The config as TOML: every setting with its help, those that have their default value commented out.

    Secrets stay out: they belong in the environment. `always` names settings that are written also as a default,
    `never` those that are left out.
    """
    sections: dict[str, list[str]] = {"": []}
    for setting in list_settings(type(config)):
        if setting.is_secret or setting.key in never:
            continue
        lines = sections.setdefault(".".join(setting.path[:-1]), [])
        lines += _render_setting(setting, get_value(config, setting), is_written=setting.key in always)
    parts = [
        (f"[{section}]\n" if section else "") + "\n".join(lines) + "\n" for section, lines in sections.items() if lines
    ]
    return "\n".join(parts)


def _render_setting(setting: Setting, value: Any, *, is_written: bool) -> Iterator[str]:
    yield from textwrap.wrap(
        f"{setting.help} ({setting.allowed()})", COMMENT_COLUMNS, initial_indent="# ", subsequent_indent="# "
    )
    is_default = setting.default is not MISSING and value == setting.default
    if value is None:
        yield f"# {setting.path[-1]} ="
    else:
        yield f"{'# ' if is_default and not is_written else ''}{setting.path[-1]} = {_to_toml(value)}"


def _to_toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case tuple():
            return "[" + ", ".join(_to_toml(item) for item in value) + "]"
        case _:
            escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
