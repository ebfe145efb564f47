"""`toolscale connect`: Toolscale in the configuration of a client."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.quoting import printable
from shared.settings import Settings, load_settings
from shared.upstream.mcp_json import server_id
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.connecting.plan import ConnectionPlan, connecting, disconnecting
from toolscale.connecting.targets import Connection
from toolscale.console import err, out, print_json
from toolscale.importing.client_files import Client, this_machine
from toolscale.importing.target import config_path, read_target
from toolscale.importing.view import difference

if TYPE_CHECKING:
    from rich.console import Console

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Write a client's file without a question.")]


def connect(
    client: Annotated[Client, typer.Argument(help="The client whose file to change.", show_default=False)],
    url: Annotated[
        str | None,
        typer.Option(help="Connect to a running service at this URL; default: the client starts Toolscale.",
                     show_default=False),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove Toolscale from the file again.")] = False,
    yes: YesOption = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The mcp.json that Toolscale serves.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:  # fmt: skip
    """Add Toolscale to the configuration of a client, and keep a backup of the file.

    It shows the change and asks before it writes. The rest of the file stays as it is, with its comments.
    With --remove, servers that `import --connect` moved to Toolscale return from the backup.
    """
    settings, machine = load_settings(mcp_config=config, data_dir=data_dir), this_machine()
    if remove:
        plan = disconnecting(client, machine, map(server_id, read_target(config_path(settings)).servers))
    else:
        plan = connecting(client, connection_of(settings, url), machine)
    written = apply_plan(plan, is_confirmed=yes, console=err if as_json else out)
    if as_json:
        print_json(written)


def connection_of(settings: Settings, url: str | None) -> Connection:
    """Return the connection to the service at a URL, or to a process that the client starts."""
    from toolscale.client.service import mcp_address  # noqa: PLC0415  # loads the HTTP client
    from toolscale.stdio import stdio_command  # noqa: PLC0415

    if url is None:
        return Connection(stdio_command(settings))
    return Connection(url=mcp_address(url))


def apply_plan(plan: ConnectionPlan, *, is_confirmed: bool, console: Console, writes: bool = True) -> dict[str, Any]:
    """Show a plan, write it if it is confirmed, and return the result as JSON."""
    path = printable(str(plan.path))
    backup, is_written = None, False
    if not plan.changes:
        console.print(f"{path}: nothing to change.", soft_wrap=True, highlight=False)
    else:
        for line in difference(*plan.shown(), path):
            console.print(line, soft_wrap=True)
        is_written = writes and (is_confirmed or typer.confirm(f"Write {path}?", err=True))
    if is_written:
        backup = plan.write(datetime.now(UTC))
        err.print(f"Written: {path}; restart {plan.title} to load it.", soft_wrap=True, highlight=False)
    if backup:
        err.print(f"Backup: {printable(str(backup))}", soft_wrap=True, highlight=False)
    return {
        "client": plan.client,
        "path": str(plan.path),
        "written": is_written,
        "backup": str(backup) if backup else None,
        "moved": list(plan.moved),
        "returned": list(plan.returned),
    }
