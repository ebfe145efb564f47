"""`toolscale add` and `remove`: the servers of the operator's `mcp.json`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ConfigInvalid, ServerUnknown, ToolscaleError
from shared.quoting import printable
from shared.server_ids import server_id
from shared.settings import load_settings
from toolscale.client.instance import read_instance
from toolscale.client.service import open_operations
from toolscale.commands.options import (
    CommandArgument,
    DataDirOption,
    EnvOption,
    HeaderOption,
    JsonOption,
    ServerUrlOption,
    key_and_value,
)
from toolscale.console import print_json, print_lines, print_notes
from toolscale.mcp_clients.clients import named_file, this_machine
from toolscale.mcp_clients.files import McpJson, config_path, read_mcp_json
from toolscale.mcp_clients.find import server_of_entry
from toolscale.mcp_clients.merge import merge

if TYPE_CHECKING:
    from shared.settings import Settings

NameArgument = Annotated[str, typer.Argument(help="The server's name in the file.", show_default=False)]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(help="A group whose callers see its tools; repeat it for several.", show_default=False),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The mcp.json to change; default: TOOLSCALE_MCP_CONFIG, or the data directory.",
        show_default=False,
    ),
]  # fmt: skip


def add(
    name: NameArgument,
    command: CommandArgument = None,
    url: ServerUrlOption = None,
    env: EnvOption = None,
    header: HeaderOption = None,
    group: GroupOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Add a server to the mcp.json that `toolscale serve` follows, and keep a backup of the file.

    A value `${VAR}` is replaced from the environment of Toolscale, so that the file holds no secret.
    """
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    target = read_mcp_json(config_path(settings))
    entry = entry_of(command or [], url, env or [], header or [])
    entry |= {"groups": sorted(set(group))} if group else {}
    server = server_of_entry(name, entry, named_file(target.path), this_machine(), settings)
    (outcome,) = (merged := merge(target.servers, [server], "keep")).outcomes
    if outcome.became == "kept out":
        raise ConfigInvalid(f"{name}: {target.path} has another server of this name; `toolscale remove` removes it")
    if server.unset:
        print_notes(f"Required where Toolscale runs: {', '.join(server.unset)}")
    if outcome.name != server.server_id:
        print_notes(printable(f"{server.server_id} is not added: {outcome.name} is the same server."))
    _write(target, merged.servers, outcome.name, outcome.became, as_json=as_json)


def remove(
    name: NameArgument, config: ConfigOption = None, as_json: JsonOption = False, data_dir: DataDirOption = None
) -> None:
    """Remove a server from the mcp.json that `toolscale serve` follows, and keep a backup of the file.

    A stopped server that an event announced leaves `toolscale ls` by itself, a week after its stop.
    """
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    target = read_mcp_json(config_path(settings))
    # of two names with one id, the name that is written
    leaving = {name} & target.servers.keys() or {key for key in target.servers if server_id(key) == server_id(name)}
    remaining = {key: entry for key, entry in target.servers.items() if key not in leaving}
    if len(remaining) == len(target.servers):
        status = _announced(settings).get(name)
        if status == "stopped":
            print_json({"server_id": name, "result": status}) if as_json else print_lines(
                printable(f"{name}: is stopped; it leaves `toolscale ls` a week after its stop")
            )
            return
        if status:
            reason = f"{name}: an event announced it, so {target.path} has no entry; `toolscale emit down` stops it"
            raise ConfigInvalid(reason)
        raise ServerUnknown.near(name, map(server_id, target.servers))
    _write(target, remaining, server_id(name), "removed", as_json=as_json)


def _announced(settings: Settings) -> dict[str, str]:
    """Return the status of each announced server; none where no service runs, since a removal needs none."""
    url, token = os.environ.get("TOOLSCALE_URL"), os.environ.get("TOOLSCALE_TOKEN")
    if settings.is_embedded and not url and read_instance(settings.data_dir) is None:
        return {}
    with suppress(ToolscaleError), open_operations(url, token, settings.data_dir) as operations:
        return {intent["server_id"]: intent["status"] for intent in operations.intents_of()}
    return {}


def entry_of(command: Sequence[str], url: str | None, env: Sequence[str], header: Sequence[str]) -> dict[str, Any]:
    """Return the entry of a server with this command or URL.

    Raises:
        ConfigInvalid: not exactly one of both is given, or an option belongs to the other.
    """
    if bool(command) == bool(url):
        raise ConfigInvalid("expected either a command after `--`, or --url")
    if (env and not command) or (header and not url):
        raise ConfigInvalid("--env belongs to a command, and --header to --url")
    if url:
        return {"url": url, "headers": dict(key_and_value(text, "--header") for text in header)}
    return {
        "command": command[0],
        "args": list(command[1:]),
        "env": dict(key_and_value(text, "--env") for text in env),
    }


def _write(target: McpJson, servers: Mapping[str, Any], name: str, became: str, *, as_json: bool) -> None:
    changes = servers != target.servers
    backup = target.write(dict(servers)) if changes else None
    if as_json:
        written = {"server_id": name, "result": became.replace(" ", "_"), "config": str(target.path)}
        print_json(written | {"backup": str(backup) if backup else None})
        return
    print_lines(printable(f"{name}: {became} ({target.path})"))
    if backup:
        lost = "; only it still has the comments" if target.has_comments else ""
        print_notes(printable(f"Backup: {backup}{lost}"))
