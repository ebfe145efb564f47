"""`toolscale serve` and `toolscale demo`: both sides in one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from shared.service.logging import configure_logging
from shared.settings import load_settings, warn_of_removed_settings
from toolscale.client.background import place_of
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import err, print_json
from toolscale.stdio import serve_stdio


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="An mcp.json of Claude, Cursor or VS Code.", show_default=False),
    ] = None,
    stdio: Annotated[
        bool,
        typer.Option(
            "--stdio",
            help="Serve a client over stdin and stdout, by the service of this data directory, which starts on demand.",
        ),
    ] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one.", show_default=False)] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Keep a catalogue of the servers in an mcp.json and answer find_tool, all in this process."""
    from toolscale.embedded import serve as embedded  # noqa: PLC0415  # loads both sides

    settings = load_settings(mcp_config=config, host=host, port=port, data_dir=data_dir)
    if stdio:
        serve_stdio(place_of(settings))
    if err.is_terminal and "log_level" not in settings.model_fields_set:
        configure_logging("WARNING")  # a terminal shows progress in sentences
    warn_of_removed_settings(os.environ)
    embedded.serve(settings)


def demo(
    as_json: JsonOption = False,
    directory: Annotated[Path, typer.Option(help="Directory for the demo's servers.")] = Path(".demo"),
) -> None:
    """Run the main job on real third-party MCP servers, ask find_tool a few questions, and end."""
    from toolscale.demo.demo import print_report, run_demo  # noqa: PLC0415  # loads both sides

    configure_logging("ERROR")  # a progress bar takes the place of the log
    report = run_demo(directory)
    if as_json:
        print_json(report.model_dump(mode="json", exclude_none=True))
    else:
        print_report(report)
