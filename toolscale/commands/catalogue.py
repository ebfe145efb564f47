"""`toolscale find`, `ls` and `show`: the content of the catalogue."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from query.replicas import first_server
from shared.errors import ServiceRejected, ToolscaleError
from shared.quoting import printable, quoted_name
from shared.service.logging import configure_logging
from shared.settings import Settings, load_settings
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
    from toolscale.client.servers import Row

Detail = Literal["summary", "detailed", "full", "auto"]

WATCH_S = 2.0
_NO_RECORDS = (
    "this service has no records of states and failures; on its machine, `toolscale ls` reads those of the workers"
)
_NO_SERVER = {False: "No server was announced yet.", True: "No server fails."}


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
    table.add_column("wire tokens", justify="right", no_wrap=True)
    table.add_column("what it does", ratio=1)
    for tool in answer["tools"]:
        replicas = tool.get("served_by", {})
        _, name = first_server(tool["name"], replicas.get("servers", ()))
        table.add_row(
            printable(tool["name"] + (f" ({replicas['count']} servers)" if replicas else "")),
            thousands(tool.get("token_count")),
            printable(str(tool.get("summary", "")).removeprefix(name)),
        )
    if answer["tools"]:
        out.print(table)
    if nearest := answer.get("nearest"):
        out.print(f"No tool fits. The nearest: {', '.join(map(quoted_name, nearest))}", highlight=False)
    for warning in answer.get("warnings", []):
        err.print(printable(warning), highlight=False, soft_wrap=True)
    metrics = answer["token_metrics"]
    if answer["tools"] and metrics["baseline_tokens"]:
        cost = f"{metrics['returned_tokens']:,} tokens in place of {metrics['baseline_tokens']:,}"
        saved = f"{metrics['savings_percentage']} % saved ({metrics['encoding']}, wire form)"
        out.print(f"{cost}: {saved}", highlight=False)


def list_servers(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Show each replica of this server in its own row.",
            show_default=False,
            autocompletion=complete_server,
        ),
    ] = None,
    failing: Annotated[bool, typer.Option("--failing", help="Only servers whose last reconciliation failed.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the table again every 2 s, until interrupted.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show every server: its state, the cost of its tools, and its problem. Replicas share a row.

    Tokens are of the form that a model API receives (generic profile).
    With --url, the servers of that service that --token may see.
    During a change of the model, stderr shows its progress.
    A running process's mcp.json is named on stderr; its left-out entries are in the table, with the reasons.
    """
    from toolscale.client.servers import as_object, is_failing, opened, problems, table, total  # noqa: PLC0415

    if watch and as_json:
        raise typer.BadParameter("--watch shows a table, so it excludes --json")
    configure_logging("ERROR")
    settings = load_settings(data_dir=data_dir)
    while True:
        known = _rows(server, settings, url, token, needs_states=failing)
        if as_json:
            print_json([as_object(row) for row in known if is_failing(row) or not failing])
            return
        is_open = failing or server is not None
        shown = [each for row in known for each in opened(row)] if is_open else known
        shown = [row for row in shown if is_failing(row) or not failing]
        if watch:
            out.clear()
        out.print(table(shown, out.width) if shown else _NO_SERVER[failing])
        if not is_open and (sums := total(known)):
            out.print(sums, highlight=False)
        for problem in problems(shown):
            out.print(problem, highlight=False, soft_wrap=True)
        if not watch:
            return
        time.sleep(WATCH_S)


def _rows(
    server: str | None, settings: Settings, url: str | None, token: str | None, *, needs_states: bool
) -> list[Row]:
    """Return the rows of all servers, or the row of one server; stderr names the followed mcp.json.

    Raises:
        ServerUnknown: the server was never announced.
        ServiceRejected: the service at the URL has no states, which are needed.
    """
    from shared.upstream.followed_config import read_followed_config  # noqa: PLC0415
    from toolscale.client.server_names import unknown  # noqa: PLC0415  # loads the store's client
    from toolscale.client.servers import migration, rows, servers  # noqa: PLC0415

    # a service names only the first replicas of a set
    found = _costs(settings, url, token, server if url else None)
    if url:
        known, notes = _rows_at(url, token, found, needs_states=needs_states)
    else:
        followed = read_followed_config(settings)
        known = rows(servers(settings), found, followed.left_out if followed else ())
        notes = (migration(settings), followed.summary if followed else None)
    for note in filter(None, notes):
        err.print(printable(note), highlight=False, soft_wrap=True)
    if server is None:
        return known
    if of_server := [row for row in known if server in row.intents]:
        return of_server
    raise unknown(server, [server_id for row in known for server_id in row.intents])


def _rows_at(
    url: str, token: str | None, found: dict[str, ServerCost], *, needs_states: bool
) -> tuple[list[Row], tuple[str | None, ...]]:
    """Return the rows of a service, and notes on missing records.

    Raises:
        ServiceRejected: the service has no records of states, which are needed.
    """
    from toolscale.client.server_records import records_at  # noqa: PLC0415
    from toolscale.client.servers import rows  # noqa: PLC0415

    records = records_at(url, token)
    if records:
        return rows(records.servers, found, records.left_out), ()
    if needs_states:
        raise ServiceRejected(_NO_RECORDS)
    return rows([], found), (_NO_RECORDS,)


def _costs(settings: Settings, url: str | None, token: str | None, server: str | None) -> dict[str, ServerCost]:
    """Return the costs of all servers, or of one; without a URL, a catalogue that does not answer is only reported."""
    from toolscale.client.costs import costs  # noqa: PLC0415
    from toolscale.client.query import open_query_client  # noqa: PLC0415  # loads the query service

    try:
        with open_query_client(settings, url, token) as ask:
            return costs(ask, server)
    except ToolscaleError as error:
        if url:
            raise
        err.print(f"Tools and tokens are unknown: {printable(str(error))}", highlight=False, soft_wrap=True)
        return {}


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
