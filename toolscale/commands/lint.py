"""`toolscale lint`: findings on the definitions of one server."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import ConfigInvalid, Retryable, ServerUnknown
from shared.quoting import printable
from shared.service.logging import configure_logging
from shared.settings import load_settings
from toolscale.commands.config import entry_of
from toolscale.commands.options import (
    CommandArgument,
    DataDirOption,
    EnvOption,
    HeaderOption,
    JsonOption,
    McpJsonOption,
    ServerUrlOption,
)
from toolscale.console import err, print_json, print_notes
from toolscale.lint.findings import Level, reaches, require_rules

if TYPE_CHECKING:
    from shared.catalog import Listing
    from shared.settings import Settings
    from toolscale.lint.rules import LintReport

# The name of a server without an entry in a file.
_UNNAMED = "server"


def lint(
    command: CommandArgument = None,
    url: ServerUrlOption = None,
    server: Annotated[
        str | None, typer.Option(help="Its name in the mcp.json, in place of a command.", show_default=False)
    ] = None,
    config: McpJsonOption = None,
    env: EnvOption = None,
    header: HeaderOption = None,
    fail_on: Annotated[Level, typer.Option(help="The lowest level of a finding that fails.")] = "warning",
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="A rule to leave out; repeat it for several.", show_default=False),
    ] = None,
    sarif: Annotated[
        Path | None, typer.Option(help="Also write the findings as SARIF 2.1.0.", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="File that SARIF names; default: the first file in the command, or that of --config.",
            show_default=False,
        ),
    ] = None,
    leaner: Annotated[bool, typer.Option("--leaner", help="Print shorter definitions in place of the report.")] = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Check the definitions of a server's tools, and show their tokens by part.

    Exit code 1 means findings at the level of --fail-on or above, and 2 that the server could not be listed.
    """
    from toolscale.lint.view import as_object, print_report, removed_sentences, shorter_as_object  # noqa: PLC0415  # loads both sides

    configure_logging("ERROR")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends the server
    require_rules(ignore or ())
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    if sum(map(bool, (command, url, server))) != 1:
        raise ConfigInvalid("expected one of a command after `--`, --url and --server")
    entry = None if server else entry_of(command or [], url, env or [], header or [])
    named = source or (_known_file(command or (), settings.mcp_config if server else None) if sarif else "")
    report = _report(settings, entry, server, ignore or ())
    if sarif:
        _write_sarif(report, sarif, named)
    if leaner:
        for sentence in removed_sentences(report):
            print_notes(printable(f"For the server's instructions: {sentence}"))
        print_json(shorter_as_object(report))
    elif as_json:
        print_json(as_object(report))
    else:
        print_report(report)
    if reaches(report.findings, fail_on):
        raise typer.Exit(1)


def _report(
    settings: Settings, entry: Mapping[str, Any] | None, server: str | None, ignored: Sequence[str]
) -> LintReport:
    """Return the report on the server of the entry, or else on the named one."""
    from shared.text.embedding import FastEmbedder  # noqa: PLC0415
    from toolscale.lint.rules import lint as lint_listing  # noqa: PLC0415

    try:
        with err.status("Listing the server ..."):
            listing = _listing(entry, server or "", settings)
        return lint_listing(listing, FastEmbedder(), ignored)
    except Retryable as error:  # exit code 1 is that of findings
        raise ConfigInvalid(str(error)) from error


def _listing(entry: Mapping[str, Any] | None, name: str, settings: Settings) -> Listing:
    """Start the server of the entry, or else the named one of the mcp.json or of clients' files; return its tools.

    Raises:
        ConfigInvalid: the file or the entry is invalid.
        ServerUnknown: no file names the server.
        ServerError: the server could not be listed.
    """
    from shared.upstream.mcp_json import config_of  # noqa: PLC0415
    from toolscale.costs import lister, servers_of  # noqa: PLC0415

    if entry:
        name, config = _UNNAMED, config_of({_UNNAMED: entry}, os.environ)
        unusable = {problem.name: problem.reason for problem in config.problems}
    else:
        found = servers_of(settings)
        config, unusable = found.config, dict(found.unusable)
    if name in unusable:
        raise ConfigInvalid(f"{name}: {unusable[name]}")
    by_id = {announcement.server_id: announcement for announcement in config.announcements}
    if name not in by_id:
        raise ServerUnknown.near(name, by_id)
    return lister(config, settings)(by_id[name])


def _known_file(command: Sequence[str], config: Path | None) -> str:
    """Return the file in the working directory that defines the server.

    Raises:
        ConfigInvalid: the command and the mcp.json are not in it.
    """
    from toolscale.lint.view import first_file, in_tree  # noqa: PLC0415

    if known := first_file(command) or (in_tree(config) if config else None):
        return known
    raise ConfigInvalid("--sarif: no file of the server is known; name it with --source")


def _write_sarif(report: LintReport, path: Path, source: str) -> None:
    from toolscale.lint.view import as_sarif  # noqa: PLC0415

    try:
        path.write_text(json.dumps(as_sarif(report, source), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigInvalid(f"--sarif: {path}: {error.strerror or error}") from error
