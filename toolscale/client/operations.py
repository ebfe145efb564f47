"""The operations of the command line: on the stores where these are servers, else by the service that has the files."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shared.settings import load_settings
from toolscale.client.service import Service, open_service

if TYPE_CHECKING:
    from query.backup import Stores
    from query.operations import Operations
    from shared.intents.intents import Intents
    from shared.settings import Settings


@contextmanager
def open_operations(
    url: str | None = None, token: str | None = None, data_dir: Path | None = None
) -> Generator[Operations | Service]:
    """Yield the operations; the URL and the token are for a service.

    Raises:
        IntentsUnavailable: Redis does not answer.
        ServiceUnreachable, InstanceMismatch, ConfigInvalid: from `service_of`.
    """
    settings = load_settings(data_dir=data_dir)
    if settings.is_embedded:
        with open_service(url, token, data_dir) as service:
            yield service
        return
    from query.operations import Operations  # noqa: PLC0415  # the stores' clients take long to import
    from shared.intents.intents import open_intents  # noqa: PLC0415
    from shared.service.tracing import configure_tracing  # noqa: PLC0415
    from workers.emit import Emitter, message_time_s  # noqa: PLC0415

    configure_tracing("toolscale", os.environ)
    with closing(open_intents(settings)) as intents:
        emitter = Emitter(intents, _send_reconcile, message_time_s(settings))
        yield Operations(intents, emitter.emit_all, emitter.accept, partial(_stores, settings, intents))


@contextmanager
def _stores(settings: Settings, intents: Intents) -> Generator[Stores]:
    from query.backup import Stores  # noqa: PLC0415  # loads the clients of the stores
    from query.usage.usage import open_usage  # noqa: PLC0415
    from shared.index.versions import open_index_versions  # noqa: PLC0415
    from shared.text.embedding import FastEmbedder  # noqa: PLC0415

    versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    with closing(versions.store), closing(open_usage(settings)) as usage:
        versions.ensure_own_version()
        yield Stores(intents, versions.current()[0].index, usage, settings.savings_keep_days)


def _send_reconcile(server_id: str) -> None:
    """Send a message for this server; if that fails, the next sweep of a worker takes the event."""
    import structlog  # noqa: PLC0415
    from kombu.exceptions import OperationalError  # noqa: PLC0415

    from workers.app import app  # noqa: PLC0415  # reads the environment, and loads Celery
    from workers.celery_app import send_reconcile  # noqa: PLC0415

    try:
        send_reconcile(app, server_id)
    except OperationalError as error:
        structlog.get_logger().warning("enqueue_failed", server=server_id, reason=str(error))
