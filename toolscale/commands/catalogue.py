"""`toolscale find`, `ls` and `show`: the content of the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from shared.errors import ToolscaleError
from shared.observability.logging import configure_logging
from shared.settings import Settings, load_settings
from shared.text.display import printable
from toolscale.commands.options import (
    DataDirOption,
    JsonOption,
    ServerArgument,
    TokenOption,
    UrlOption,
    complete_server,
)
from toolscale.console import err, out, percent, print_json, thousands

if TYPE_CHECKING:
    from toolscale.client.costs import ServerCost

Detail = Literal["summary", "detailed", "full", "auto"]


def find(
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="The task of the tool, in a few words.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="At most so many tools.")] = 8,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Only tools of this server; repeat it for several.", autocompletion=complete_server),
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only tools of this group; repeat it for several.")] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only tools that declare that they change nothing.")
    ] = False,
    detail: Annotated[Detail, typer.Option(help="How much of each tool --json prints.")] = "summary",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Find the tools for a task, as find_tool does for an agent, and show the saving."""
    from toolscale.client.query import open_query_client  # noqa: PLC0415  # loads the query service

    configure_logging("ERROR")  # the answer carries the warnings
    arguments: dict[str, Any] = {"tool_description": " ".join(query), "limit": limit, "read_only": read_only}
    arguments |= {"detail": detail if as_json else "summary"}
    arguments |= {name: value for name, value in (("servers", server), ("groups", group)) if value}
    settings = load_settings(data_dir=data_dir)
    with open_query_client(settings, url, token) as ask:
        answer = ask("find_tool", arguments)
    if server and not answer["tools"] and not url:
        _refuse_unknown(server, settings)
    if as_json:
        print_json(answer)
    else:
        print_tools(answer)


def _refuse_unknown(servers: list[str], settings: Settings) -> None:
    from toolscale.client.server_names import announced, unknown  # noqa: PLC0415  # loads the store's client

    known = announced(settings)
    for server in servers:
        if server not in known:
            raise unknown(server, known)


def print_tools(answer: dict[str, Any]) -> None:
    """Print an answer of find_tool as a table; warnings go to stderr."""
    table = Table(box=None, header_style="bold")
    table.add_column("tool", overflow="fold")
    table.add_column("wire tokens", justify="right")
    table.add_column("what it does", ratio=1)
    for tool in answer["tools"]:
        table.add_row(
            printable(f"{tool['server']}:{tool['name']}"),
            thousands(tool.get("token_count")),
            printable(str(tool.get("summary", "")).removeprefix(tool["name"])),
        )
    if answer["tools"]:
        out.print(table)
    if nearest := answer.get("nearest"):
        out.print(f"No tool fits. The nearest: {printable(', '.join(nearest))}", highlight=False)
    for warning in answer.get("warnings", []):
        err.print(printable(warning), highlight=False, soft_wrap=True)
    metrics = answer["token_metrics"]
    if answer["tools"] and metrics["baseline_tokens"]:
        cost = f"{metrics['returned_tokens']:,} tokens in place of {metrics['baseline_tokens']:,}"
        saved = f"{metrics['savings_percentage']} % saved ({metrics['encoding']}, wire form)"
        out.print(f"{cost}: {saved}", highlight=False)


def list_servers(
    as_json: JsonOption = False, url: UrlOption = None, token: TokenOption = None, data_dir: DataDirOption = None
) -> None:
    """Show every server: its state, the cost of its tools, and its problem.

    Tokens are of the form that a model API receives (generic profile).
    With --url, the servers, tools and tokens of that service. During a change of the model, stderr shows its progress.
    """
    from toolscale.client.costs import costs  # noqa: PLC0415
    from toolscale.client.query import open_query_client  # noqa: PLC0415  # loads the query service
    from toolscale.client.servers import as_object, migration, rows, servers, table  # noqa: PLC0415

    configure_logging("ERROR")
    settings = load_settings(data_dir=data_dir)
    intents = [] if url else servers(settings)
    try:
        with open_query_client(settings, url, token) as ask:
            found = costs(ask)
    except ToolscaleError as error:
        if url:
            raise
        err.print(f"Tools and tokens are unknown: {printable(str(error))}", highlight=False, soft_wrap=True)
        found = {}
    if progress := None if url else migration(settings):
        err.print(printable(progress), highlight=False, soft_wrap=True)
    known = rows(intents, found)
    if as_json:
        print_json([as_object(row) for row in known])
    else:
        out.print(table(known, out.width) if known else "No server was announced yet.")


def show(
    server: ServerArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a server's tools and their tokens (generic profile), the largest first."""
    from toolscale.client.costs import cost_as_object, cost_table  # noqa: PLC0415  # loads the query service

    configure_logging("ERROR")
    found = _cost(server, load_settings(data_dir=data_dir), url, token)
    if as_json:
        print_json(cost_as_object(server, found))
    elif found:
        out.print(cost_table(found))
        total = f"{len(found.tools)} tools, {found.tokens or 0:,} tokens: {percent(found.part)} of all"
        out.print(total, highlight=False)
    else:
        out.print(f"{printable(server)} has no searchable tools; `toolscale ls` shows the reason.", highlight=False)


def _cost(server: str, settings: Settings, url: str | None, token: str | None) -> ServerCost | None:
    """Return the cost of a server, None if it has no searchable tools; raises ServerUnknown for an unknown id."""
    from toolscale.client.costs import costs  # noqa: PLC0415
    from toolscale.client.query import open_query_client  # noqa: PLC0415  # loads the query service
    from toolscale.client.server_names import announced, unknown  # noqa: PLC0415

    with open_query_client(settings, url, token) as ask:
        found = costs(ask, server).get(server)
        known = {server} if found else set(costs(ask))
    known |= set() if url or found else set(announced(settings))
    if server not in known:
        raise unknown(server, known)
    return found
