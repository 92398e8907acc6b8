"""Shell completion as a static script, made by walking the parser. Pure.

The script knows each command's words and flags. It is printed anew after an upgrade.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletionPoint:
    """A place on the command line: the commands typed so far, and what may follow."""

    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    """Name and help."""
    flags: tuple[str, ...]
    choices: tuple[str, ...]
    """Of an argument that takes one of a few words."""


def build_completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    spots = list(walk_parser(parser, ()))
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](parser.prog, spots)


def walk_parser(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[CompletionPoint]:
    below: list[tuple[str, argparse.ArgumentParser]] = []
    commands: list[tuple[str, str]] = []
    flags: list[str] = []
    choices: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {each.dest: each.help or "" for each in action._choices_actions}
            commands += [(name, helps.get(name, "")) for name in action.choices]
            below += list(action.choices.items())
        elif action.option_strings:
            flags += [option for option in action.option_strings if option.startswith("--")]
        elif action.choices:
            choices += map(str, action.choices)
    yield CompletionPoint(words, tuple(commands), tuple(flags), tuple(choices))
    for name, child in below:
        yield from walk_parser(child, (*words, name))


def _following(spot: CompletionPoint) -> str:
    return " ".join([*(name for name, _ in spot.commands), *spot.choices, *spot.flags])


def _bash(program: str, spots: list[CompletionPoint]) -> str:
    function = "_" + program.replace("-", "_")
    known = " ".join(f"'{' '.join(spot.words)}'" for spot in spots if spot.words)
    cases = "\n".join(f"    '{' '.join(spot.words)}') words='{_following(spot)}' ;;" for spot in spots)
    return f"""# bash completion for {program}: source this file, or put it into a bash-completion folder.
{function}() {{
  local at='' next word words=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    next="${{at:+$at }}$word"
    case " $(printf '%s|' {known})" in *[\\ \\|]"$next|"*) at="$next" ;; esac
  done
  case "$at" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [ ${{#COMPREPLY[@]}} -eq 0 ] && COMPREPLY=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -F {function} {program}
"""


def _zsh(program: str, spots: list[CompletionPoint]) -> str:
    follow = "\n".join(f"  '{' '.join(spot.words)}' '{_following(spot)}'" for spot in spots)
    return f"""#compdef {program}
# zsh completion for {program}: put this file into a folder of $fpath as _{program}, before compinit is called.
local at='' next word
local -A follow
follow=(
{follow}
)
for word in "${{(@)words[2,CURRENT-1]}}"; do
  next="${{at:+$at }}$word"
  (( ${{+follow[$next]}} )) && at="$next"
done
local -a choices
choices=(${{=follow[$at]}})
compadd -a choices || _files
"""


def _fish(program: str, spots: list[CompletionPoint]) -> str:
    lines = [f"# fish completion for {program}: put this file into ~/.config/fish/completions."]
    for spot in spots:
        seen = "".join(f"; and __fish_seen_subcommand_from {word}" for word in spot.words)
        names = " ".join(name for name, _ in spot.commands)
        fresh = f"; and not __fish_seen_subcommand_from {names}" if names else ""
        condition = f"true{seen}{fresh}"
        for name, text in spot.commands:
            lines.append(f"complete -c {program} -n {_quoted(condition)} -f -a {name} -d {_quoted(text)}")
        for choice in spot.choices:
            lines.append(f"complete -c {program} -n {_quoted(condition)} -f -a {choice}")
        for flag in spot.flags:
            lines.append(f"complete -c {program} -n {_quoted(condition)} -l {flag.removeprefix('--')}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
