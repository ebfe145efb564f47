"""The `toolscale` command. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done; 1 it did not work out, trying again may; 2 the command, an event or a setting is wrong.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer
from rich.text import Text

from shared.errors import Permanent, ToolscaleError
from shared.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.catalogue import find, list_servers, show
from toolscale.commands.doctor import doctor
from toolscale.commands.emit import emit_app, resync
from toolscale.commands.importing import import_servers
from toolscale.commands.serve import demo, serve
from toolscale.commands.state import dead_letters, show_savings
from toolscale.commands.token import token_app
from toolscale.commands.toolset import toolset_app
from toolscale.commands.watch import watch_app
from toolscale.console import err, out, plain

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One searchable catalogue of the tools of many MCP servers, and what it saves in tokens.",
)
app.command("serve")(serve)
app.command("demo")(demo)
app.command("import")(import_servers)
app.command("find")(find)
app.command("ls")(list_servers)
app.command("show")(show)
app.command("resync")(resync)
app.command("doctor")(doctor)
app.command("dead-letters")(dead_letters)
app.command("savings")(show_savings)
app.add_typer(emit_app, name="emit")
app.add_typer(token_app, name="token")
app.add_typer(toolset_app, name="toolset")
app.add_typer(watch_app, name="watch")


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"toolscale {importlib.metadata.version('toolscale')}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[  # noqa: ARG001  # the callback acts on it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One searchable catalogue of the tools of many MCP servers, and what it saves in tokens."""
    configure_logging(load_settings().log_level)


def main() -> None:
    """Run the command line; an expected error is one line on stderr, not a traceback."""
    try:
        app()
    except ToolscaleError as error:
        err.print(Text.assemble(("error:", "red"), " ", plain(str(error))), soft_wrap=True)
        sys.exit(2 if isinstance(error, Permanent) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
