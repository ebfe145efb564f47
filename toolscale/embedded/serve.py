"""`toolscale serve`: ingestion and query service for the servers of an mcp.json, in one process."""

from __future__ import annotations

import atexit
import gc
import json
import os
import shlex
import signal
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.auth.authentication import authentication_of
from query.calling.upstreams import upstreams_of
from query.catalogue import Catalogue, live_catalogue
from query.history import recording
from query.metrics import QueryMetrics
from query.reports.catalogue_size import sampling
from query.search.live_index import live_index
from query.server.http import MCP_PATH, HttpServer
from query.server.listener import HttpListener, open_listener
from query.server.mcp import service_of
from query.server.metrics_route import metrics_route
from query.server.servers_route import servers_route
from query.server.stdio import serve_stdio, stdio_caller
from query.web.routes import PATH as PAGE_PATH
from query.web.routes import page_routes
from shared.errors import ConfigInvalid
from shared.observability.tracing import configure_tracing
from shared.settings import Settings
from shared.text.display import printable
from shared.upstream.mcp_json import Config, read_config
from toolscale.client.instance import published
from toolscale.client.program import stdio_command
from toolscale.client.server_records import records_in
from toolscale.console import err
from toolscale.embedded.composition import Embedded, run_embedded
from toolscale.embedded.startup_progress import report_startup
from toolscale.importing.target import with_config_file
from workers.emit import Emitter
from workers.events_api.recorder import EventRecorder
from workers.events_api.routes import events_route
from workers.notifications.thread import listeners_running

if TYPE_CHECKING:
    from starlette.routing import Route

    from shared.catalog import Scope

# Only for a tokens file; with JWTs the client gets a token from the issuer.
TOKEN_HEADER = {"Authorization": "Bearer TOKEN"}


def serve_embedded(settings: Settings, *, stdio: bool) -> None:
    """Follow the configured servers and answer until a signal, or the client, ends the process.

    Raises:
        ConfigInvalid: the file has no usable server, the settings of authentication are invalid, or another
            process uses the data directory or the address.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: closes every resource
    atexit.register(gc.freeze)  # else the interpreter's last collection takes half a second
    configure_tracing("toolscale", os.environ)
    settings = with_config_file(settings)
    if settings.mcp_config:
        _check(settings.mcp_config)
    if stdio:
        with (
            suppress(KeyboardInterrupt),
            _running(settings) as (_, catalogue),
            closing(upstreams_of(settings)) as upstreams,
        ):
            serve_stdio(service_of(catalogue, upstreams, stdio_caller(settings)))
        return
    # before the model is loaded, so that errors of address and authentication appear at once
    with (
        suppress(KeyboardInterrupt),  # also one that arrives before the service is ready
        closing(open_listener(settings, authentication_of(settings))) as listener,
        _running(settings) as (embedded, catalogue),
    ):
        _answer(embedded, catalogue, listener)


@contextmanager
def _running(settings: Settings) -> Generator[tuple[Embedded, Catalogue]]:
    with (
        run_embedded(settings) as embedded,
        _servers(embedded, settings.mcp_config),
        _notifications(settings, embedded),
        live_index(embedded.versions) as followed,
        recording(settings) as savings,
    ):
        metrics = QueryMetrics(embedded.deps.metrics.registry)
        catalogue = replace(live_catalogue(followed, settings, metrics), recorder=savings)
        with sampling(catalogue):
            yield embedded, catalogue


def _check(path: Path) -> None:
    """Reject a file without a usable server. An invalid file after the start changes nothing."""
    config = read_config(path, os.environ)
    if config.problems and not config.announcements:
        raise ConfigInvalid(f"{path}: no usable server; {config.problems[0]}")


@contextmanager
def _servers(embedded: Embedded, path: Path | None) -> Generator[None]:
    """Follow the file if there is one, else announce the servers of earlier events again."""
    if path:
        with embedded.following(path):
            yield
    else:
        embedded.announce(Config())
        yield


def _notifications(settings: Settings, embedded: Embedded) -> AbstractContextManager[None]:
    if settings.subscribe == "none":
        return nullcontext()
    return listeners_running(settings, embedded.deps.intents, embedded.emit, embedded.deps.metrics.registry)


def _answer(embedded: Embedded, catalogue: Catalogue, listener: HttpListener) -> None:
    with (
        _events_routes(embedded) as events,
        closing(upstreams_of(embedded.settings)) as upstreams,
        published(embedded.settings.data_dir, listener.address) as instance,
    ):
        server = service_of(catalogue, upstreams, listener.authenticate)
        metrics = metrics_route(catalogue, listener, is_open=embedded.settings.metrics_public)
        servers = servers_route(catalogue, listener, partial(_records, embedded, catalogue))
        routes = [*page_routes(catalogue, listener), *events, metrics, servers]
        http = HttpServer(
            server,
            listener,
            index=catalogue.index,
            routes=routes,
            checks=embedded.checks,
            followed_config=catalogue.followed_config,
            instance_id=instance.instance_id,
        )
        err.print(connection_help(http.url, embedded.settings), highlight=False, soft_wrap=True, markup=False)
        with _reporting(embedded, catalogue):
            http.run()


def _records(embedded: Embedded, catalogue: Catalogue, scope: Scope) -> dict[str, Any]:
    return records_in(scope, embedded.deps.intents.intents(), catalogue.followed_config())


def _reporting(embedded: Embedded, catalogue: Catalogue) -> AbstractContextManager[None]:
    """Show the progress of the first listings in a terminal; elsewhere the log has an event for each."""
    return report_startup(embedded, catalogue, _print) if err.is_terminal else nullcontext()


def _print(line: str) -> None:
    err.print(printable(line), highlight=False, soft_wrap=True)


@contextmanager
def _events_routes(embedded: Embedded) -> Generator[list[Route]]:
    """Yield the route of the events API if a token is set."""
    settings = embedded.settings
    if settings.events_token is None:
        yield []
        return
    token, metrics = settings.events_token, embedded.deps.metrics
    emitter = Emitter(embedded.deps.intents, embedded.enqueue, settings.redeliver_after_s, metrics)
    with closing(EventRecorder(emitter)) as recorder:
        yield [events_route(recorder, token=token, on_response=metrics.events_response)]


def connection_help(url: str, settings: Settings) -> str:
    """Return the commands and configuration that connect a client to this catalogue."""
    needs_token = settings.tokens_file is not None
    entry: dict[str, object] = {"type": "http", "url": url}
    over_http = {"mcpServers": {"toolscale": entry | ({"headers": TOKEN_HEADER} if needs_token else {})}}
    header = f" --header {shlex.quote(': '.join(*TOKEN_HEADER.items()))}" if needs_token else ""
    command = stdio_command(settings)
    return "\n".join(
        (
            f"Toolscale answers at {url}",
            f"Web page: {url.removesuffix(MCP_PATH)}{PAGE_PATH}",
            "",
            "Claude Code:",
            f"  claude mcp add --transport http toolscale {url}{header}",
            "or over stdio, where the client starts the process:",
            f"  claude mcp add toolscale -- {shlex.join(command)}",
            "",
            "Cursor, Claude Code and others, in an mcp.json (VS Code: `servers` in place of `mcpServers`):",
            json.dumps(over_http, indent=2),
            "",
        )
    )
