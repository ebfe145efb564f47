"""`toolscale status`, `dead-letters` and `savings`: reports from the stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from shared.settings import load_settings
from shared.text.display import printable
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import out, print_json


def status(as_json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Show the number of servers in each state, the due reconciliations and the dead letters.

    `ls` shows each server, `doctor` the health of the installation.
    """
    from toolscale.client.status import status as read  # noqa: PLC0415  # loads the store's client
    from toolscale.client.status import view  # noqa: PLC0415

    found = read(load_settings(data_dir=data_dir))
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    for line in view(found):
        out.print(line, highlight=False)


def dead_letters(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 20,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show rejected events and messages, with the reasons."""
    from workers.intents import open_intents  # noqa: PLC0415  # loads the store's client

    intents = open_intents(load_settings(data_dir=data_dir))
    letters = intents.dead_letters(limit)
    intents.close()
    if as_json:
        print_json([letter.model_dump(mode="json") for letter in letters])
        return
    table = Table("when", "reason", "message", box=None, header_style="bold")
    for letter in letters:
        when = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
        table.add_row(when, printable(letter.reason), printable(letter.body[:200]))
    out.print(table if letters else "There are no dead letters.")


def show_savings(
    period: Annotated[str, typer.Argument(help="today, a number of days (7d), or a date; UTC.")] = "today",
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show the tokens saved, net and gross, by day, and the use of servers and tools."""
    from toolscale.client.savings import savings, view  # noqa: PLC0415  # loads the store's client

    report = savings(load_settings(data_dir=data_dir), period)
    if as_json:
        print_json(report.as_object())
    else:
        out.print(view(report))
