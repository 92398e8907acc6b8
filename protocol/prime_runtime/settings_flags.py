"""Command-line flags made from a config dataclass. They only carry text; settings.py reads and checks it."""

import argparse
from dataclasses import MISSING
from typing import Any

from prime_runtime.secret import Secret
from prime_runtime.settings_schema import list_settings
from prime_runtime.settings_values import show_value


def add_flags(parser: argparse.ArgumentParser, config: type) -> None:
    """A flag for each setting but the secrets. Values stay text; `load_config` reads and checks them."""
    for setting in list_settings(config):
        if setting.scalar is Secret:
            continue
        shown = "" if setting.default is MISSING else f" Default: {show_value(setting.default)}."
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
