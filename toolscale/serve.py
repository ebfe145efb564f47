"""`toolscale serve`: the catalogue of an mcp.json, and find_tool over it, in one process."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.catalogue import followed_catalogue
from query.following import following
from query.http import HttpServer
from query.server import build_server
from query.stdio import serve_stdio
from query.tools import offers
from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.mcp_json import Config, read_config
from toolscale.console import err
from toolscale.embedded import Embedded, run_embedded
from workers.door.http import events_route
from workers.door.recording import Recorder

if TYPE_CHECKING:
    from mcp.server import Server

    from shared.index.contract import ToolIndex


def serve_embedded(settings: Settings, *, stdio: bool) -> None:
    """Follow the configured servers and answer until a signal, or the client, ends it.

    Raises:
        ConfigInvalid: the file cannot be used, or none of its servers can, or another Toolscale process uses the
            data directory.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwinds as Ctrl-C does, so all is closed
    if settings.config:
        _check(settings.config)
    with run_embedded(settings) as embedded, suppress(KeyboardInterrupt), _servers(embedded, settings.config):
        _answer(embedded, stdio=stdio)


def _check(path: Path) -> None:
    """Refuse a file that is of no use now; once we run, one that breaks changes nothing."""
    config = read_config(path, os.environ)
    if config.problems and not config.announcements:
        raise ConfigInvalid(f"{path}: no usable server; {config.problems[0]}")


@contextmanager
def _servers(embedded: Embedded, path: Path | None) -> Generator[None]:
    """Keep the catalogue at what the file says, or, without one, at what events said before."""
    if path:
        with embedded.following(path):
            yield
    else:
        embedded.announce(Config())
        yield


def _answer(embedded: Embedded, *, stdio: bool) -> None:
    settings = embedded.settings
    with following(embedded.editions) as followed:
        server = build_server(offers(followed_catalogue(followed, settings)))
        if stdio:
            serve_stdio(server)
            return
        with _http_server(server, followed.index, embedded) as http:
            err.print(connection_help(http.url, settings), highlight=False, soft_wrap=True, markup=False)
            http.run()


@contextmanager
def _http_server(server: Server[Any], index: ToolIndex, embedded: Embedded) -> Generator[HttpServer]:
    """Bind the query service, with the door for events beside it where a token is set."""
    settings = embedded.settings
    if settings.events_token is None:
        yield HttpServer(server, index=index, settings=settings)
        return
    with closing(Recorder(embedded.deps.intents, embedded.wake, due_in_s=settings.retry_after_s)) as recorder:
        door = events_route(recorder, token=settings.events_token, max_body_bytes=settings.door_max_body_bytes)
        yield HttpServer(server, index=index, settings=settings, routes=[door])


def connection_help(url: str, settings: Settings) -> str:
    """Return what to type or paste so that a client uses this catalogue."""
    over_http = {"mcpServers": {"toolscale": {"type": "http", "url": url}}}
    config = ["--config", str(settings.config.resolve())] if settings.config else []
    command = [*_program(), "serve", "--stdio", *config, "--data-dir", str(settings.data_dir.resolve())]
    return "\n".join(
        (
            f"Toolscale answers at {url}",
            "",
            "Claude Code:",
            f"  claude mcp add --transport http toolscale {url}",
            "or, over stdio, started by the client in the place of this process:",
            f"  claude mcp add toolscale -- {shlex.join(command)}",
            "",
            "Cursor, Claude Code and others, in an mcp.json (VS Code: `servers` for `mcpServers`):",
            json.dumps(over_http, indent=2),
            "",
        )
    )


def _program() -> list[str]:
    """Return how this program was started, in full: a client's PATH seldom has the environment it is installed in."""
    program = Path(sys.argv[0]).resolve()
    return [sys.executable, "-m", "toolscale"] if program.name == "__main__.py" else [str(program)]
