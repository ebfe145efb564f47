"""`toolscale advice`: the tools that a toolset should hold, from their use."""

from __future__ import annotations

from typing import Annotated

import typer

from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import out, print_json


def advice(
    toolset: Annotated[str | None, typer.Option(help="A toolset; default: all tools.", show_default=False)] = None,
    budget: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Limit of tokens, in place of the toolset's.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show which tools to offer directly, and which to drop, from the calls of 30 days."""
    from toolscale.client.advice import read_advice, view  # noqa: PLC0415  # loads the query service

    configure_logging("ERROR")
    found = read_advice(load_settings(data_dir=data_dir), toolset, budget, url, token)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        out.print(view(found))
