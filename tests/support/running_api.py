"""The query service over HTTP in a thread, on files in a directory, for the command line."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import pytest
import structlog

from query.api import api_routes
from query.auth.authentication import Authentication
from query.backup import Stores
from query.catalogue import Catalogue
from query.listener import open_listener
from query.mcp import caller_of_request, service_of
from query.operations import Operations
from query.policy import ReadPolicy, no_policy
from query.records import Ledger
from query.service import HttpServer
from query.usage.usage import open_usage
from shared.index.tools import ToolIndex
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.upstream.followed_config import followed_config_store
from shared.upstream.log import log_directory
from tests.support.fakes import FakeEmbedder, FakeIndex
from workers.emit import Emitter


@contextmanager
def running_api(
    data_dir: Path,
    index: ToolIndex | None = None,
    authentication: Authentication | None = None,
    read_policy: ReadPolicy = no_policy,
) -> Generator[str]:
    """Serve this index, and the intents and the usage in the directory, without any worker; yield the address."""
    settings, index = load_settings(data_dir=data_dir, port=0), index or FakeIndex()
    with (
        closing(open_listener(settings, authentication)) as listener,
        closing(open_intents(settings)) as intents,
        closing(open_usage(settings)) as usage,
    ):
        followed = followed_config_store(settings)
        catalogue = Catalogue(
            index,
            FakeEmbedder(),
            Ledger(index),
            usage=usage,
            followed_config=followed.get,
            intents=intents,
            read_policy=read_policy,
        )
        emitter = Emitter(intents, lambda _: None, 0)
        stores = Stores(intents, index, usage, settings.savings_keep_days)
        operations = Operations(intents, emitter.emit_all, emitter.accept, lambda: nullcontext(stores))
        routes = api_routes(catalogue, listener, operations, log_directory(settings))
        server = HttpServer(service_of(catalogue, None, caller_of_request), listener, index=index, routes=routes)
        thread, configured = threading.Thread(target=server.run), structlog.get_config()
        # a command in this process has its own streams for a moment, and the service would log to them
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        thread.start()
        try:
            yield listener.address
        finally:
            server.stop()
            thread.join(10)
            structlog.configure(**configured)


@contextmanager
def commands_served(data_dir: Path, patch: pytest.MonkeyPatch, *, is_complete: bool = False) -> Generator[None]:
    """Let commands of this process use a service of the stores in the directory, which may be complete."""
    patch.setenv("TOOLSCALE_DATA_DIR", str(data_dir))
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN"):
        patch.setenv(name, "")
    # the service logs in this process, to a stream that a command would replace
    patch.setattr("toolscale.app._configure_logging", lambda: None)
    if is_complete:
        with closing(open_intents(load_settings())) as intents:
            intents.mark_complete()
    with running_api(data_dir) as url:
        patch.setenv("TOOLSCALE_URL", url)
        yield
