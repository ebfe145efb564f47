"""The `toolscale` command. Results go to stdout, progress and logs to stderr.

Exit codes: 0 done; 1 it did not work out, trying again may; 2 the command, an event or a setting is wrong.
"""

from __future__ import annotations

import importlib.metadata
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from shared.errors import Permanent, ToolscaleError
from shared.logging import configure_logging
from shared.settings import load_settings
from toolscale.console import DataDirOption, JsonOption, err, out, plain, print_json
from toolscale.emit_cli import emit_app
from toolscale.token_cli import token_app
from toolscale.toolset_cli import toolset_app
from toolscale.watch_cli import watch_app

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="One searchable catalogue of the tools of many MCP servers, and what it saves in tokens.",
)
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


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="An mcp.json of Claude, Cursor or VS Code.", show_default=False),
    ] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Speak MCP over stdin and stdout instead of HTTP.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.", show_default=False)] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Keep a catalogue of the servers in an mcp.json and answer find_tool, all in this process."""
    from toolscale.serve import serve_embedded  # noqa: PLC0415  # loads both sides

    serve_embedded(load_settings(config=config, host=host, port=port, data_dir=data_dir), stdio=stdio)


@app.command()
def demo(
    as_json: JsonOption = False,
    directory: Annotated[Path, typer.Option(help="Where the demo's servers are installed.")] = Path(".demo"),
) -> None:
    """Run the main job on real third-party MCP servers, ask find_tool a few questions, and end."""
    from toolscale.demo import run_demo  # noqa: PLC0415  # loads both sides
    from toolscale.demo_report import print_report  # noqa: PLC0415

    configure_logging("ERROR")  # the progress says what goes on
    report = run_demo(directory)
    if as_json:
        print_json(report.model_dump(mode="json", exclude_none=True))
    else:
        print_report(report)


@app.command("servers")
def list_servers(as_json: JsonOption = False, data_dir: DataDirOption = None) -> None:
    """Show every announced server: how far the catalogue is with it, when it looks next, and what is wrong."""
    from toolscale.servers import as_object, servers, table  # noqa: PLC0415  # loads the store's client

    found = servers(load_settings(data_dir=data_dir))
    if as_json:
        print_json([as_object(intent) for intent in found])
    elif found:
        out.print(table(found))
    else:
        out.print("No server was announced yet.")


@app.command("dead-letters")
def dead_letters(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, newest first.")] = 20,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show the events and messages that were refused, and why."""
    from workers.intents import open_intents  # noqa: PLC0415  # loads the store's client

    intents = open_intents(load_settings(data_dir=data_dir))
    letters = intents.dead_letters(limit)
    intents.close()
    if as_json:
        print_json([letter.model_dump(mode="json") for letter in letters])
        return
    table = Table("when", "why", "what", box=None, header_style="bold", title=None if letters else "None was refused.")
    for letter in letters:
        when = datetime.fromtimestamp(letter.at, UTC).isoformat(timespec="seconds")
        table.add_row(when, plain(letter.reason), plain(letter.body[:200]))
    out.print(table)


@app.command("savings")
def show_savings(
    period: Annotated[str, typer.Argument(help="today, a number of days (7d), or a date; UTC.")] = "today",
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Show the tokens that find_tool saved, gross and net, by day, server and tool."""
    from toolscale.savings import savings, view  # noqa: PLC0415  # loads the store's client

    found = savings(load_settings(data_dir=data_dir), period)
    if as_json:
        print_json(found.as_object())
    else:
        out.print(view(found))


def main() -> None:
    """Run the command line; an expected error is one line on stderr, not a traceback."""
    try:
        app()
    except ToolscaleError as error:
        err.print(Text.assemble(("error:", "red"), " ", plain(str(error))), soft_wrap=True)
        sys.exit(2 if isinstance(error, Permanent) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
