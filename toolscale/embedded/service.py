"""The service of `toolscale serve`: ingestion and catalogue, for clients over HTTP and over stdio."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from query.app import MCP_PATH, metrics_route
from query.caller import operator
from query.calling.upstreams import Upstreams, upstreams_of
from query.catalogue import Catalogue, live_catalogue
from query.history import recording
from query.reports.catalogue_size import sampling
from query.search.live_index import live_index
from query.server.mcp import caller_of_request, service_of
from query.server.servers_route import servers_route
from query.service import HttpServer, grace_s_of, tune_interpreter
from query.turns import allow_turns
from query.web.connecting import claude_command, client_config
from query.web.routes import PATH as PAGE_PATH
from query.web.routes import page_routes
from shared.errors import ConfigInvalid, IntentsUnavailable
from shared.quoting import printable
from shared.service.process import full_environment
from shared.settings import Settings
from shared.upstream.mcp_json import Config, read_config
from toolscale.client.program import stdio_command
from toolscale.client.server_records import records_in
from toolscale.console import err
from toolscale.embedded.composition import Embedded, run_embedded
from toolscale.embedded.holder import listening
from toolscale.embedded.sessions import Sessions, sessions_running
from toolscale.embedded.startup_progress import report_startup
from workers.emit import Emitter
from workers.events_api.api import EventRecorder, events_route
from workers.events_api.producers import producers_of
from workers.monitoring.metrics import BacklogGauges
from workers.notifications.supervisor import listeners_running

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.routing import Route

    from query.listener import HttpListener
    from shared.catalog import Scope
    from shared.intents.intents import Intents
    from toolscale.embedded.streams import Hello


@dataclass(frozen=True, slots=True)
class RunningService:
    """Ingestion, catalogue and upstreams of a data directory."""

    embedded: Embedded
    catalogue: Catalogue
    upstreams: Upstreams


@contextmanager
def running(settings: Settings) -> Generator[RunningService]:
    """Run the workers and open the catalogue until the block ends.

    Raises:
        ConfigInvalid: the file has no usable server, or another process uses the data directory.
    """
    if settings.mcp_config:
        _check(settings.mcp_config)
    with _running(settings) as (embedded, catalogue), closing(upstreams_of(settings)) as upstreams:
        yield RunningService(embedded, catalogue, upstreams)


@contextmanager
def sessions_only(settings: Settings) -> Generator[Sessions]:
    """Run the service for clients over stdio until the block ends.

    Raises:
        ConfigInvalid: from `running`.
    """
    with running(settings) as service, _sessions(service) as sessions:
        yield sessions


@contextmanager
def _sessions(service: RunningService) -> Generator[Sessions]:
    settings = service.embedded.settings
    with (
        listening(settings) as listener,
        sessions_running(partial(_server, service), partial(_refusal, settings), listener) as sessions,
    ):
        yield sessions


def _server(service: RunningService, hello: Hello) -> Server[Any]:
    caller = operator(hello.groups, hello.toolset)
    return service_of(service.catalogue, service.upstreams, lambda _: caller)


def _refusal(settings: Settings, hello: Hello) -> str | None:
    """Return the reason why this client cannot share the service; without an `mcp.json` of its own, it can."""
    served = settings.mcp_config and str(settings.mcp_config.resolve())
    if hello.config in (None, served):
        return None
    return (
        f"another Toolscale process uses {settings.data_dir} and follows {served or 'no mcp.json'}, not "
        f"{hello.config}; use that file, or another data directory by --data-dir"
    )


@contextmanager
def _running(settings: Settings) -> Generator[tuple[Embedded, Catalogue]]:
    allow_turns(index_is_embedded=settings.qdrant_url is None)
    with (
        run_embedded(settings) as embedded,
        _servers(embedded, settings.mcp_config),
        _notifications(settings, embedded),
        live_index(embedded.versions) as followed,
        recording(settings) as savings,
    ):
        catalogue = replace(
            live_catalogue(followed, settings),
            recorder=savings,
            dead_letters=partial(_dead_letters, embedded.deps.intents),
        )
        with sampling(catalogue):
            yield embedded, catalogue


def _dead_letters(intents: Intents) -> int | None:
    """Return the number of dead letters, None if the store does not answer."""
    try:
        return intents.backlog().dead_letters
    except IntentsUnavailable:
        return None


def _check(path: Path) -> None:
    """Reject a file without a usable server. An invalid file after the start changes nothing."""
    config = read_config(path, full_environment())
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
    return listeners_running(settings, embedded.deps.intents, embedded.emit)


def answer(service: RunningService, listener: HttpListener, instance_id: str) -> None:
    """Answer over HTTP, and to the clients over stdio of other processes, until a signal."""
    embedded, catalogue = service.embedded, service.catalogue
    with _events_routes(embedded) as events, _sessions(service):
        server = service_of(catalogue, service.upstreams, caller_of_request)
        backlog = BacklogGauges(embedded.deps.intents.backlog)
        metrics = metrics_route(catalogue, listener, is_open=embedded.settings.metrics_public, gauges=[backlog])
        servers = servers_route(catalogue, listener, partial(_records, service))
        routes = [*page_routes(catalogue, listener), *events, metrics, servers]
        http = HttpServer(
            server,
            listener,
            index=catalogue.index,
            routes=routes,
            checks=embedded.checks,
            followed_config=catalogue.followed_config,
            instance_id=instance_id,
            grace_s=grace_s_of(embedded.settings),
        )
        err.print(connection_help(http.url, embedded.settings), highlight=False, soft_wrap=True, markup=False)
        tune_interpreter()
        with _reporting(embedded, catalogue):
            http.run()


def _records(service: RunningService, scope: Scope) -> dict[str, Any]:
    return records_in(scope, service.embedded.deps.intents.intents(), service.catalogue.followed_config())


def _reporting(embedded: Embedded, catalogue: Catalogue) -> AbstractContextManager[None]:
    """Show the progress of the first listings in a terminal; elsewhere the log has an event for each."""
    return report_startup(embedded, catalogue, _print) if err.is_terminal else nullcontext()


def _print(line: str) -> None:
    err.print(printable(line), highlight=False, soft_wrap=True)


@contextmanager
def _events_routes(embedded: Embedded) -> Generator[list[Route]]:
    """Yield the route of the events API if a producer has a token."""
    producers = producers_of(embedded.settings)
    if producers is None:
        yield []
        return
    emitter = Emitter(embedded.deps.intents, embedded.wake, embedded.settings.redeliver_after_s)
    with closing(EventRecorder(emitter)) as recorder:
        yield [events_route(recorder, producers=producers)]


def connection_help(url: str, settings: Settings) -> str:
    """Return the commands and configuration that connect a client to this catalogue."""
    # with JWTs the client gets a token from the issuer
    needs_token = settings.tokens_file is not None
    command = stdio_command(settings)
    return "\n".join(
        (
            f"Toolscale answers at {url}",
            f"Web page: {url.removesuffix(MCP_PATH)}{PAGE_PATH}",
            "",
            "Claude Code:",
            f"  {claude_command(url, needs_token=needs_token)}",
            "or over stdio, where the client starts the process:",
            f"  claude mcp add toolscale -- {shlex.join(command)}",
            "",
            "Cursor, Claude Code and others, in an mcp.json (VS Code: `servers` in place of `mcpServers`):",
            client_config(url, needs_token=needs_token),
            "",
        )
    )
