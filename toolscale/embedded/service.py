"""The service of `toolscale serve`: ingestion, catalogue and HTTP."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from query.api import api_routes
from query.app import metrics_route
from query.backup import Stores
from query.calling.listing import SharedSessions
from query.calling.upstreams import upstreams_of
from query.catalogue import Catalogue, live_catalogue, live_index, recorded
from query.listener import MCP_PATH
from query.mcp import caller_of_request, caller_or_anyone, record_list, service_of
from query.operations import Operations
from query.service import HttpServer, grace_s_of, tune_interpreter
from query.sign_in import SOURCE, SignInFlows
from query.sign_in_routes import SignInRoutes
from query.turns import allow_turns
from query.usage.record import sampling
from query.usage.usage import open_usage
from query.web.overview import claude_command, client_config
from query.web.page import Means
from query.web.routes import PATH as PAGE_PATH
from query.web.routes import page_routes
from shared.errors import ConfigInvalid
from shared.intents import times
from shared.quoting import printable
from shared.service.every import every
from shared.service.files import disk_problem
from shared.service.process import full_environment
from shared.settings import Settings
from shared.upstream.dial import dialler_for
from shared.upstream.log import log_directory
from shared.upstream.mcp_json import Config, read_config
from shared.upstream.sign_ins import open_sign_ins
from toolscale.client.instance import is_published
from toolscale.console import FIRST_SERVERS, err, print_notes
from toolscale.embedded.composition import Embedded, run_embedded
from toolscale.embedded.door import IDLE_S, Door, Use, use_routes
from toolscale.embedded.startup_progress import report_startup
from toolscale.mcp_clients.excluding import exclude
from toolscale.stdio import stdio_command
from workers.emit import Emitter
from workers.events_api.api import EventRecorder, events_route
from workers.events_api.producers import producers_of
from workers.monitoring.metrics import BacklogGauges
from workers.notifications.supervisor import listeners_running

if TYPE_CHECKING:
    from query.early import Listed
    from query.listener import HttpListener
    from shared.intents.intents import Intents
    from toolscale.client.instance import Instance

IDLE_CHECK_S = 10.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunningService:
    """Ingestion and catalogue of a data directory."""

    embedded: Embedded
    catalogue: Catalogue
    sessions: SharedSessions


@contextmanager
def running(settings: Settings) -> Generator[RunningService]:
    """Run the workers and open the catalogue until the block ends.

    Raises:
        ConfigInvalid: the file has no usable server, or another process uses the data directory.
    """
    path = settings.mcp_config
    if path:  # an invalid file after the start changes nothing
        config = read_config(path, full_environment())
        if config.problems and not config.announcements:
            raise ConfigInvalid(f"{path}: no usable server; {config.problems[0]}")
    allow_turns(index_is_embedded=settings.qdrant_url is None)
    sessions = SharedSessions()
    with run_embedded(settings, sessions) as embedded, ExitStack() as sources:
        intents = embedded.deps.intents
        if path:
            sources.enter_context(embedded.following(path))
        else:
            embedded.announce(Config())  # the servers of earlier events again
        if settings.subscribe != "none":
            sources.enter_context(listeners_running(settings, intents, embedded.emit))

        with (
            live_index(embedded.versions) as followed,
            closing(open_usage(settings)) as usage,
            recorded(live_catalogue(followed, settings), usage) as catalogue,
            sampling(usage, catalogue.ledger, catalogue.encoding),
        ):
            yield RunningService(embedded, replace(catalogue, intents=intents), sessions)


def answer(
    service: RunningService, listener: HttpListener, instance: Instance, use: Use, lists: Sequence[Listed]
) -> None:
    """Answer over HTTP until a signal; a background service also ends when it was not used for IDLE_S.

    The lists of tools that were sent before are recorded now.
    """
    embedded, catalogue = service.embedded, service.catalogue
    settings, intents, usage = embedded.settings, embedded.deps.intents, catalogue.usage
    assert usage  # every service has one
    for context, page in lists:
        record_list(catalogue, caller_or_anyone(context), page, context, is_first=True)
    emitter = Emitter(intents, embedded.wake, times.REDELIVER_AFTER_S)
    stores = Stores(intents, catalogue.index, usage, settings.savings_keep_days)
    operations = Operations(intents, emitter.emit_all, emitter.accept, lambda: nullcontext(stores))
    dialler, sign_ins = dialler_for(settings, full_environment()), open_sign_ins(settings)

    def resync(server_id: str) -> None:
        intents.request(server_id, SOURCE)
        embedded.wake(server_id)

    kept = catalogue.response_policy.kept
    flows = SignInFlows(dialler, sign_ins, kept, listener.public_address, resync, is_local=listener.is_local)
    upstreams = service.sessions.upstreams = upstreams_of(settings, dialler, kept, resync)
    http: HttpServer
    with ExitStack() as beside:
        routes = [
            *page_routes(catalogue, listener, _means(settings, resync)),
            metrics_route(
                catalogue, listener, is_open=settings.metrics_public, gauges=[BacklogGauges(intents.backlog)]
            ),
            *api_routes(catalogue, listener, operations, log_directory(settings)),
            *SignInRoutes(catalogue, flows, sign_ins, listener).routes(),
            *use_routes(use, lambda: http.is_ending, (lambda: http.stop()) if instance.is_background else None),
        ]
        if producers := producers_of(settings):
            recorder = beside.enter_context(closing(EventRecorder(emitter)))
            routes.append(events_route(recorder, producers=producers))
        http = HttpServer(
            service_of(catalogue, upstreams, caller_of_request, flows),
            listener,
            index=catalogue.index,
            routes=routes,
            checks={**embedded.checks, "disk": partial(disk_problem, settings.data_dir)},
            followed_config=catalogue.followed_config,
            instance_id=instance.instance_id,
            grace_s=grace_s_of(settings),
            door=lambda app: Door(app, instance.secret, use),
        )

        def end_if_unused() -> None:
            # no client finds a service whose data directory is gone
            if use.idle_s > IDLE_S or not is_published(instance, settings.data_dir):
                _log.info("service_idle", idle_s=round(use.idle_s))
                http.stop()

        if instance.is_background:
            beside.enter_context(every(IDLE_CHECK_S, end_if_unused, "idle_check_failed"))
        else:
            print_notes(connection_help(http.url, settings), *_first_step(intents))
        if err.is_terminal:  # elsewhere the log has an event for each listing
            beside.enter_context(report_startup(embedded, catalogue, _print))
        tune_interpreter()
        http.run()


def _means(settings: Settings, resync: Callable[[str], None]) -> Means:
    path = settings.mcp_config
    return Means(resync, log_directory(settings), partial(exclude, path) if path else None, path)


def _print(line: str) -> None:
    print_notes(printable(line))


def _first_step(intents: Intents) -> list[str]:
    return [] if any(intents.intents()) else [f"The catalogue has no server yet. {FIRST_SERVERS}", ""]


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
