"""`toolscale describe` and `call`: one tool of the catalogue."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shared.errors import ServiceRejected
from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption, key_and_value
from toolscale.console import err, out, print_json, thousands

ToolArgument = Annotated[
    str, typer.Argument(metavar="TOOL", help="`server:tool`, or another name of `toolscale find`.", show_default=False)
]


def describe(
    tool: ToolArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a tool: its description, its parameters and its tokens."""
    from toolscale.client.query import open_query_client  # noqa: PLC0415  # loads the query service
    from toolscale.client.tools import description, parameter_table  # noqa: PLC0415

    configure_logging("ERROR")
    with open_query_client(load_settings(data_dir=data_dir), url, token) as ask:
        found = description(ask, tool)
    if as_json:
        print_json(found)
        return
    out.print(f"{printable(found['name'])}: {thousands(found.get('token_count'))} wire tokens", highlight=False)
    for line in str(found.get("description", "")).splitlines():
        out.print(printable(line), highlight=False)
    if (table := parameter_table(found)).row_count:
        out.print("", table)


def call(
    tool: ToolArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="An argument; JSON where the parameter is not a text.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Confirm the call if the operator's policy asks.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Call a tool, and print its result.

    If the operator's policy requires a confirmation, it asks; without a terminal, that needs --yes.
    Exit code 1 means that the tool reports an error.
    A stdio server starts for the call, unless a running service calls it.
    """
    from toolscale.client.query import asking, open_call_client  # noqa: PLC0415  # loads the query service
    from toolscale.client.tools import arguments_of, description, lines  # noqa: PLC0415
    from toolscale.importing.target import with_config_file  # noqa: PLC0415

    configure_logging("ERROR")
    given = [key_and_value(text, "KEY=VALUE") for text in arguments or ()]
    with open_call_client(with_config_file(load_settings(data_dir=data_dir)), url, token) as call_tool:
        found = description(asking(call_tool), tool)
        request = {"tool_name": tool, "parameters": arguments_of(found, given)}
        result = call_tool("call_tool", request, (lambda _: True) if yes else _confirm)
    if as_json:
        print_json(result.model_dump(mode="json", by_alias=True, exclude_none=True))
    else:
        for line in lines(result):
            (err if result.is_error else out).print(printable(line), highlight=False, soft_wrap=True)
    if result.is_error:
        raise typer.Exit(1)


def _confirm(question: str) -> bool:
    """Return the user's answer; the default is no.

    Raises:
        ServiceRejected: there is no terminal to ask in.
    """
    if not (sys.stdin.isatty() and err.is_terminal):
        raise ServiceRejected(f"the operator's policy asks before this call; confirm it with --yes: {question}")
    return typer.confirm(printable(question), err=True)
