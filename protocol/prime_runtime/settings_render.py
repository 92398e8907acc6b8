"""A config written back as a TOML file, with the help of each setting as a comment."""

from collections.abc import Collection
from dataclasses import MISSING
from typing import Any

from prime_runtime.secret import Secret
from prime_runtime.settings_schema import list_settings


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
