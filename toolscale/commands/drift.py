"""`toolscale drift`: the changes of tool definitions."""

from __future__ import annotations

from typing import Annotated

import typer

from query.history.periods import days_of, start_s, today
from shared.observability.logging import configure_logging
from shared.settings import load_settings
from shared.text.display import printable
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption, complete_server
from toolscale.console import out, print_json

SinceOption = Annotated[str, typer.Option(help="First day: today, a number of days (7d), or a date; UTC.")]


def drift(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Show the changes of this server with their diffs.",
            show_default=False,
            autocompletion=complete_server,
        ),
    ] = None,
    since: SinceOption = "30d",
    meaning: Annotated[bool, typer.Option("--meaning", help="Leave out cosmetic changes.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show the tools that servers changed, added or removed after their first list, the newest first.

    A change is cosmetic if only the tool's title, icons or whitespace differ; any other is a change of meaning.
    """
    from query.reports.changes import ChangesRequest  # noqa: PLC0415  # loads the query service
    from toolscale.client.drift import changes, lines, table  # noqa: PLC0415

    configure_logging("ERROR")
    try:
        first, _ = days_of(since, today())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
    asked = ChangesRequest(since=int(start_s(first)), server=server, kind="meaning" if meaning else None)
    document = changes(load_settings(data_dir=data_dir), asked, url, token)
    found = document["changes"]
    if as_json:
        print_json(document)
    elif not found:
        out.print(f"No tool changed since {first}.", highlight=False)
    elif server:
        for line in (line for change in found for line in lines(change)):
            out.print(printable(line), highlight=False, soft_wrap=True)
    else:
        out.print(table(found))
        if document["more"]:
            out.print(f"These are the newest {len(found):,}; older ones are left out.", highlight=False)
