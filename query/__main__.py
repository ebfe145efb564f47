"""Run the query service: `python -m query`, or `python -m query --stdio` as a client's child."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace

import structlog

from query.app import metrics_route
from query.auth.authentication import authentication_of
from query.calling.upstreams import upstreams_of
from query.catalogue import Catalogue, live_catalogue
from query.history import recording
from query.listener import open_listener
from query.reports.catalogue_size import sampling
from query.reports.dead_letters import dead_letter_counter
from query.search.live_index import live_index
from query.server.mcp import caller_of_request, service_of
from query.server.stdio import serve_stdio, stdio_caller
from query.service import HttpServer, grace_s_of, tune_interpreter
from query.turns import allow_turns
from query.web.routes import page_routes
from shared.errors import ToolscaleError
from shared.index.versions import open_index_versions
from shared.service.logging import configure_logging
from shared.service.process import full_environment, interrupt_once
from shared.service.tracing import configure_tracing
from shared.settings import Settings, load_service_settings
from shared.text.embedding import FastEmbedder

_log = structlog.get_logger()


def main() -> int:
    """Serve until a signal or the client ends it; return the exit code, 1 when it could not start."""
    configure_logging("INFO")
    interrupt_once()
    try:
        serve(load_service_settings(), stdio=_arguments().stdio)
    except ToolscaleError as error:
        _log.error("query_service_failed", kind=type(error).__name__, reason=str(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def serve(settings: Settings, *, stdio: bool) -> None:
    """Open the index and the model, serve, and close the index at the end, after an error too.

    Raises:
        ConfigInvalid: a setting cannot be used.
        IndexUnavailable: the index cannot be opened.
    """
    configure_logging(settings.log_level)
    configure_tracing("toolscale-query", full_environment())
    if stdio:
        with _catalogue(settings) as catalogue, closing(upstreams_of(settings)) as upstreams:
            serve_stdio(service_of(catalogue, upstreams, stdio_caller(settings)))
        return
    with (
        # opened before the model, so that an invalid setting fails at once
        closing(open_listener(settings, authentication_of(settings))) as listener,
        _catalogue(settings) as catalogue,
        closing(upstreams_of(settings)) as upstreams,
    ):
        server = service_of(catalogue, upstreams, caller_of_request)
        metrics = metrics_route(catalogue, listener, is_open=settings.metrics_public)
        routes = [*page_routes(catalogue, listener), metrics]
        tune_interpreter()
        HttpServer(
            server,
            listener,
            index=catalogue.index,
            routes=routes,
            checks={"index": catalogue.filling},
            followed_config=catalogue.followed_config,
            grace_s=grace_s_of(settings),
        ).run()


@contextmanager
def _catalogue(settings: Settings) -> Generator[Catalogue]:
    allow_turns(index_is_embedded=settings.qdrant_url is None)
    embedder = FastEmbedder(settings.embedding_model)
    versions = open_index_versions(settings, embedder)
    with closing(versions.store), live_index(versions) as live, recording(settings) as recorder:
        catalogue = replace(
            live_catalogue(live, settings), recorder=recorder, dead_letters=dead_letter_counter(settings)
        )
        with sampling(catalogue):
            yield catalogue


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m query", description="Find tools over MCP, and count the tokens saved."
    )
    parser.add_argument("--stdio", action="store_true", help="serve one client over stdin and stdout instead of HTTP")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
