"""`toolscale dead-letters`: shows rejected events and messages."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from shared.quoting import printable
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import out, print_json


def dead_letters(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 20,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show the latest rejected events and messages, with the reasons.

    With --json, each has its whole message. After a repair, send an event again with `toolscale emit event`.
    """
    from shared.intents.intents import open_intents  # noqa: PLC0415  # loads the store's client

    with closing(open_intents(load_settings(data_dir=data_dir))) as intents:
        letters = intents.dead_letters(limit)
    if as_json:
        print_json([letter.model_dump(mode="json") for letter in letters])
        return
    table = Table("when", "reason", "message", box=None, header_style="bold")
    for letter in letters:
        when = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
        table.add_row(when, printable(letter.reason), printable(letter.body[:200]))
    out.print(table if letters else "There are no dead letters.")
