"""Every command is described, and answers in JSON."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from toolscale.app import app


def _below(command: object, name: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for part, below in command.commands.items():
            yield from _below(below, f"{name} {part}")
    elif isinstance(command, TyperCommand):
        yield name, command


COMMANDS = dict(_below(typer.main.get_command(app), "toolscale"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_parameters_are_described(name: str) -> None:
    assert COMMANDS[name].help
    assert all(str(getattr(parameter, "help", "") or "") for parameter in COMMANDS[name].params)


GROUPS = [["emit"], ["token"], ["toolset"], ["watch"], []]
EVERY = [*(name.split()[1:] for name in COMMANDS), *GROUPS]


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_the_help_has_examples_and_shows_no_value_of_a_flag(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "-h"], env={"COLUMNS": "80"})

    assert result.exit_code == 0
    assert "<bool>" not in result.stdout
    _, heading, examples = result.stdout.partition("Examples:")
    assert heading
    assert " ".join(["toolscale", *words]) in " ".join(examples.split())


# Commands that run until a signal have no result.
WITHOUT_JSON = {"toolscale serve", "toolscale watch docker", "toolscale watch kubernetes"}


def test_every_command_with_output_has_json() -> None:
    with_json = {name for name, command in COMMANDS.items() if any("--json" in each.opts for each in command.params)}
    assert COMMANDS.keys() - with_json == WITHOUT_JSON
