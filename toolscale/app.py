"""The `toolscale` application with all its commands."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from shared.errors import ConfigInvalid
from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.advice import advice
from toolscale.commands.backup import backup, restore
from toolscale.commands.catalogue import find, list_servers, show
from toolscale.commands.config import ADD_EXAMPLES, add, remove
from toolscale.commands.connecting import connect
from toolscale.commands.costs import costs
from toolscale.commands.dead_letters import dead_letters
from toolscale.commands.definitions import approve, diff
from toolscale.commands.doctor import doctor
from toolscale.commands.emit import emit_app, resync
from toolscale.commands.help import command, group
from toolscale.commands.importing import import_servers
from toolscale.commands.lint import LINT_EXAMPLES, lint
from toolscale.commands.logs import logs
from toolscale.commands.serve import demo, serve
from toolscale.commands.state import show_savings, status
from toolscale.commands.token import token_app
from toolscale.commands.tools import call, describe
from toolscale.commands.toolset import toolset_app
from toolscale.commands.watch import watch_app
from toolscale.console import out

RUN, INSPECT, ANNOUNCE, SHARE = "Run it", "Inspect it", "Announce servers", "Share it"

app = group(
    "One searchable catalogue of the tools of many MCP servers, and what it saves in tokens.",
    "toolscale serve --config ~/.cursor/mcp.json",
    "toolscale find what time is it in Tokyo",
)
command(app, "serve", "toolscale serve --config ~/.cursor/mcp.json", panel=RUN)(serve)
command(app, "demo", "toolscale demo", panel=RUN)(demo)
command(app, "import", "toolscale import --from cursor --apply", "toolscale import --apply --connect", panel=RUN)(
    import_servers
)
command(app, "connect", "toolscale connect cursor", "toolscale connect codex --remove", panel=RUN)(connect)
command(app, "add", *ADD_EXAMPLES, panel=RUN)(add)
command(app, "remove", "toolscale remove docs", panel=RUN)(remove)
command(app, "costs", "toolscale costs --config .demo/mcp.json", panel=INSPECT)(costs)
command(app, "lint", *LINT_EXAMPLES, panel=INSPECT)(lint)
command(app, "find", "toolscale find what time is it in Tokyo --limit 3", panel=INSPECT)(find)
command(app, "ls", "toolscale ls", "toolscale ls --failing", "toolscale ls --url http://127.0.0.1:8765", panel=INSPECT)(
    list_servers
)
command(app, "show", "toolscale show time", panel=INSPECT)(show)
command(app, "describe", "toolscale describe time:get_current_time", panel=INSPECT)(describe)
command(app, "call", "toolscale call time:get_current_time timezone=Asia/Tokyo", panel=INSPECT)(call)
command(app, "logs", "toolscale logs time", "toolscale logs time --lines 200", panel=INSPECT)(logs)
command(app, "diff", "toolscale diff time", panel=INSPECT)(diff)
command(
    app,
    "approve",
    "toolscale approve time",
    "toolscale approve time get_time@5e884898da28047151d0e56f8dc62927",
    panel=INSPECT,
)(approve)
command(app, "status", "toolscale status", panel=INSPECT)(status)
command(app, "resync", "toolscale resync time --wait", panel=ANNOUNCE)(resync)
command(app, "doctor", "toolscale doctor", panel=RUN)(doctor)
command(app, "backup", "toolscale backup backups/2026-11-21", panel=RUN)(backup)
command(app, "restore", "toolscale restore backups/2026-11-21", panel=RUN)(restore)
command(app, "dead-letters", "toolscale dead-letters --limit 5", panel=INSPECT)(dead_letters)
command(app, "savings", "toolscale savings 7d", panel=INSPECT)(show_savings)
command(app, "advice", "toolscale advice", "toolscale advice --toolset dev --budget 3000", panel=INSPECT)(advice)
app.add_typer(emit_app, name="emit", rich_help_panel=ANNOUNCE)
app.add_typer(token_app, name="token", rich_help_panel=SHARE)
app.add_typer(toolset_app, name="toolset", rich_help_panel=SHARE)
app.add_typer(watch_app, name="watch", rich_help_panel=ANNOUNCE)


def _print_version(requested: bool) -> None:
    if requested:
        out.print(f"toolscale {importlib.metadata.version('toolscale')}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001  # the callback acts on it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Configure the log before any command."""
    configure_logging(_log_level())


def _log_level() -> str:
    try:
        return load_settings().log_level
    except ConfigInvalid:
        return "INFO"  # a command that needs the settings reports the error; --help does not need them
