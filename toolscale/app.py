"""The `toolscale` application with all its commands."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from shared.errors import ConfigInvalid
from shared.observability.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.catalogue import find, list_servers, show
from toolscale.commands.costs import costs
from toolscale.commands.doctor import doctor
from toolscale.commands.emit import emit_app, resync
from toolscale.commands.importing import import_servers
from toolscale.commands.serve import demo, serve
from toolscale.commands.state import dead_letters, show_savings
from toolscale.commands.token import token_app
from toolscale.commands.toolset import toolset_app
from toolscale.commands.watch import watch_app
from toolscale.console import out

RUN, INSPECT, ANNOUNCE, SHARE = "Run it", "Inspect it", "Announce servers", "Share it"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command("serve", rich_help_panel=RUN)(serve)
app.command("demo", rich_help_panel=RUN)(demo)
app.command("import", rich_help_panel=RUN)(import_servers)
app.command("costs", rich_help_panel=INSPECT)(costs)
app.command("find", rich_help_panel=INSPECT)(find)
app.command("ls", rich_help_panel=INSPECT)(list_servers)
app.command("show", rich_help_panel=INSPECT)(show)
app.command("resync", rich_help_panel=ANNOUNCE)(resync)
app.command("doctor", rich_help_panel=RUN)(doctor)
app.command("dead-letters", rich_help_panel=INSPECT)(dead_letters)
app.command("savings", rich_help_panel=INSPECT)(show_savings)
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
    """One searchable catalogue of the tools of many MCP servers, and what it saves in tokens."""
    configure_logging(_log_level())


def _log_level() -> str:
    try:
        return load_settings().log_level
    except ConfigInvalid:
        return "INFO"  # a command that needs the settings reports the error; --help does not need them
