"""`docs/cli.md` has every command with every argument and option, in the words of `--help`, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from toolscale.app import app

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
PLACES = ("*.md", "docs/*.md", "deploy/helm/**/*.md", "deploy/helm/**/NOTES.txt")
TOLD = sorted(path for place in PLACES for path in ROOT.glob(place))
_ROW = re.compile(r"^\| (`.*?) \| (.*) \|$", re.MULTILINE)


def commands(command: object, name: str) -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command below one, by its whole name."""
    if isinstance(command, TyperGroup):
        for part, below in command.commands.items():
            yield from commands(below, f"{name} {part}")
    elif isinstance(command, TyperCommand):
        yield name, command


COMMANDS = dict(commands(typer.main.get_command(app), "toolscale"))


def rows(command: TyperCommand) -> dict[str, str]:
    """Return what a command's table says: each argument and option, and what it means."""
    return {_named(parameter): str(getattr(parameter, "help", "") or "") for parameter in command.params}


def _named(parameter: object) -> str:
    if isinstance(parameter, TyperArgument):
        return f"`{parameter.metavar or str(parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in getattr(parameter, "opts", ()))


def sections() -> dict[str, str]:
    """Return the text below each command's heading."""
    found = re.split(r"^## `(toolscale [^`]+)`\n", PAGE, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_command_has_a_section_and_no_other_thing_has() -> None:
    assert list(sections()) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_says_what_help_says(name: str) -> None:
    section, command = sections()[name], COMMANDS[name]

    assert section.strip().startswith(str(command.help).splitlines()[0])
    assert dict(_ROW.findall(section)) == rows(command)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_parameters_are_described(name: str) -> None:
    assert COMMANDS[name].help
    assert all(rows(COMMANDS[name]).values())


# What runs until it is ended answers nothing.
WITHOUT_JSON = {"toolscale serve", "toolscale watch docker", "toolscale watch kubernetes"}


def test_whatever_answers_something_answers_in_json_too() -> None:
    assert {name for name, command in COMMANDS.items() if "`--json`" not in rows(command)} == WITHOUT_JSON


@pytest.mark.parametrize("path", TOLD, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_people_are_told_to_run_exists(path: Path) -> None:
    told = re.findall(r"(?:^\s*|`|-- )toolscale ([a-z][a-z-]*)", path.read_text(encoding="utf-8"), re.MULTILINE)

    assert set(told) <= {name.split()[1] for name in COMMANDS}
