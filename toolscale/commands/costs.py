"""`toolscale costs`: the tokens of an mcp.json's tools."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from shared.catalog import Encoding
from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.service.process import imported_at_once
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, McpJsonOption
from toolscale.console import FIRST_SERVERS, err, print_json, print_notes

if TYPE_CHECKING:
    from shared.settings import Settings
    from toolscale.costs import CostReport


def costs(
    config: McpJsonOption = None,
    encoding: Annotated[
        Encoding | None, typer.Option(help="Encoding; default: TOOLSCALE_TOKEN_ENCODING.", show_default=False)
    ] = None,
    partial_ok: Annotated[
        bool, typer.Option("--partial-ok", help="Exit code 0 also where only some servers could be listed.")
    ] = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """List the servers of an mcp.json, and show the tokens that a client pays for their tools.

    It needs no catalogue and writes none. Exit code 1 means that a server could not be listed.
    """
    with imported_at_once():
        from toolscale.costs import as_object, print_report  # noqa: PLC0415  # loads the MCP SDK

    configure_logging("ERROR")  # the rows have the problems
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends every server
    report = report_of(load_settings(mcp_config=config, data_dir=data_dir, token_encoding=encoding))
    if as_json:
        print_json(as_object(report))
    elif report.servers:
        print_report(report)
    else:
        print_notes(f"There is no server to list. {FIRST_SERVERS}")
    if not report.is_of_any or (report.counts["failed"] and not partial_ok):
        raise typer.Exit(1)


def report_of(settings: Settings) -> CostReport:
    """List the servers of the settings' mcp.json and return the costs of their tools; stderr shows the progress."""
    with imported_at_once():
        from toolscale.costs import CostReport, own_cost, server_costs, servers_of  # noqa: PLC0415

    found, encoding = servers_of(settings), settings.token_encoding
    total = len(found.config.announcements)
    files = ", ".join(map(str, found.files)) or "no file of a client"
    print_notes(f"Listing the servers of {printable(files)} ...")
    with ThreadPoolExecutor(1) as beside, err.status(f"Listed 0 of {total} servers ...") as status:
        own = beside.submit(own_cost, encoding)
        servers = server_costs(
            found, settings, encoding, lambda done: status.update(f"Listed {done} of {total} servers ...")
        )
    return CostReport(encoding, found.files, servers, own.result())
