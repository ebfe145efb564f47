"""`docs/cli.md`: every command with its help, its parameters and its examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from tests.support.reference.notes import NOTES
from toolscale.app import app
from toolscale.commands.help import examples_of

# Above this line is the part that people write.
START = "<!-- from the code: make docs -->\n"
# An option that so many commands take, with the same words, is described once.
COMMON_FROM = 3


def render(document: str) -> str:
    """Return the page; the part above `START` is kept."""
    return "\n".join([document.partition(START)[0] + START, *_common_section(), *_sections()]).rstrip() + "\n"


def commands() -> dict[str, TyperCommand]:
    """Return every command by its whole name."""
    return dict(_below(typer.main.get_command(app), "toolscale"))


def _below(command: object, name: str) -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for part, below in command.commands.items():
            yield from _below(below, f"{name} {part}")
    elif isinstance(command, TyperCommand):
        yield name, command


def parameters(command: TyperCommand) -> dict[str, str]:
    """Return each argument and option of a command, as code, and its help."""
    return {_named(parameter): str(getattr(parameter, "help", "") or "") for parameter in command.params}


def _named(parameter: object) -> str:
    if isinstance(parameter, TyperArgument):
        return f"`{parameter.metavar or str(parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in getattr(parameter, "opts", ()))


def _common() -> dict[str, str]:
    """Return the options of several commands; of two meanings of an option the more frequent one."""
    rows = Counter(row for command in commands().values() for row in parameters(command).items())
    frequent = [row for row, count in reversed(rows.most_common()) if count >= COMMON_FROM and row[0].startswith("`--")]
    return dict(reversed(dict(frequent).items()))


def _common_section() -> Iterator[str]:
    yield "## Options of several commands\n"
    yield from _list(_common())


def _sections() -> Iterator[str]:
    for name, command in commands().items():
        yield f"## `{name}`\n"
        yield from (" ".join(paragraph.split()) + "\n" for paragraph in str(command.help).split("\n\n"))
        rows = parameters(command)
        yield from _list({option: text for option, text in rows.items() if _common().get(option) != text})
        also = [option for option, text in rows.items() if _common().get(option) == text]
        if also:
            yield f"Also {', '.join(also)}.\n"
        note = NOTES.get(name, "").strip()
        if not note.startswith("```"):  # the output of a run repeats the example
            yield "\n".join(("```sh", *examples_of(command), "```\n"))
        if note:
            yield f"{note}\n"


def _list(rows: dict[str, str]) -> Iterator[str]:
    if rows:
        yield "\n".join(f"- {option}: {text}" for option, text in rows.items()) + "\n"
