"""`toolscale status` and `savings`: reports from the stores."""

from __future__ import annotations

from typing import Annotated

import typer

from shared.settings import load_settings
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
