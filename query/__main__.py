"""Run the query service: `python -m query`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import structlog

from query.api import api_routes
from query.app import Checks, metrics_route
from query.auth.authentication import authentication_of
from query.calling.upstreams import upstreams_of
from query.catalogue import Catalogue, live_catalogue, live_index, recorded
from query.listener import open_listener
from query.mcp import caller_of_request, service_of
from query.service import HttpServer, grace_s_of, tune_interpreter
from query.sign_in import SOURCE, SignInFlows
from query.sign_in_routes import SignInRoutes
from query.turns import allow_turns
from query.usage.record import sampling
from query.usage.usage import open_usage
from query.web.page import Means
from query.web.routes import page_routes
from shared.errors import EventInvalid, ToolscaleError
from shared.index.versions import open_index_versions
from shared.intents.intents import open_intents
from shared.service.files import disk_problem
from shared.service.logging import configure_logging
from shared.service.process import full_environment, interrupt_once
from shared.service.tracing import configure_tracing
from shared.settings import Settings, load_service_settings, warn_of_removed_settings
from shared.text.embedding import FastEmbedder
from shared.upstream.dial import dialler_for
from shared.upstream.sign_ins import open_sign_ins

_log = structlog.get_logger()


def main() -> int:
    """Serve until a signal; return the exit code, 1 when it could not start."""
    ArgumentParser(prog="python -m query", description="Find tools over MCP, and count the tokens saved.").parse_args()
    configure_logging("INFO")
    interrupt_once()
    try:
        serve(load_service_settings())
    except ToolscaleError as error:
        _log.error("query_service_failed", kind=type(error).__name__, reason=str(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def serve(settings: Settings) -> None:
    """Open the index and the model, serve, and close the index at the end, after an error too.

    Raises:
        ConfigInvalid: a setting cannot be used.
        IndexUnavailable: the index cannot be opened.
    """
    configure_logging(settings.log_level)
    warn_of_removed_settings(full_environment())
    configure_tracing("toolscale-query", full_environment())
    with (
        # opened before the model, so that an invalid setting fails at once
        closing(open_listener(settings, authentication_of(settings))) as listener,
        _catalogue(settings) as catalogue,
    ):
        dialler, sign_ins = dialler_for(settings, full_environment()), open_sign_ins(settings)
        kept, resync = catalogue.response_policy.kept, partial(_resync, catalogue)
        flows = SignInFlows(dialler, sign_ins, kept, listener.public_address, resync, is_local=listener.is_local)
        server = service_of(catalogue, upstreams_of(settings, dialler, kept, resync), caller_of_request, flows)
        routes = [
            *page_routes(catalogue, listener, Means(resync if catalogue.intents else None)),
            metrics_route(catalogue, listener, is_open=settings.metrics_public),
            *api_routes(catalogue, listener),
            *SignInRoutes(catalogue, flows, sign_ins, listener).routes(),
        ]
        tune_interpreter()
        has_servers = settings.redis_url and settings.qdrant_url
        disk: Checks = {} if has_servers else {"disk": partial(disk_problem, settings.data_dir)}
        HttpServer(
            server,
            listener,
            index=catalogue.index,
            routes=routes,
            checks={"index": catalogue.filling, **disk},
            followed_config=catalogue.followed_config,
            grace_s=grace_s_of(settings),
        ).run()


def _resync(catalogue: Catalogue, server_id: str) -> None:
    """Request a listing with the tokens of a new sign-in; the next sweep of the workers finds it."""
    if catalogue.intents:
        with suppress(EventInvalid):  # it was never announced
            catalogue.intents.request(server_id, SOURCE)


@contextmanager
def _catalogue(settings: Settings) -> Generator[Catalogue]:
    allow_turns(index_is_embedded=settings.qdrant_url is None)
    embedder = FastEmbedder(settings.embedding_model)
    versions = open_index_versions(settings, embedder)
    with (
        closing(versions.store),
        live_index(versions) as live,
        closing(open_usage(settings)) as usage,
        recorded(live_catalogue(live, settings), usage) as catalogue,
        sampling(usage, catalogue.ledger, catalogue.encoding),
        # the workers know the next reconciliations
        closing(open_intents(settings)) if settings.redis_url else nullcontext() as intents,
    ):
        yield replace(catalogue, intents=intents)


if __name__ == "__main__":
    sys.exit(main())
