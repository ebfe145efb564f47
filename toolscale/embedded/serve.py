"""`toolscale serve`: ingestion and query service for the servers of an mcp.json, in one process.

Imports of the service take seconds, so this module imports it after the first answers.
"""

from __future__ import annotations

import atexit
import gc
from contextlib import ExitStack, closing, suppress
from typing import TYPE_CHECKING

from shared.service.process import (
    full_environment,
    imported_at_once,
    interrupt_once,
    raise_open_files,
    withhold_secrets,
)
from shared.service.tracing import configure_tracing
from toolscale.client.instance import published
from toolscale.console import err
from toolscale.embedded.holder import hold
from toolscale.importing.target import with_config_file

if TYPE_CHECKING:
    from shared.settings import Settings


def serve_embedded(settings: Settings, *, stdio: bool) -> None:
    """Follow the configured servers and answer until a signal, or the client, ends the process.

    Raises:
        ConfigInvalid: the file has no usable server, the settings of authentication are invalid, or another
            process uses the data directory or the address.
    """
    withhold_secrets()
    raise_open_files()
    interrupt_once()
    atexit.register(gc.freeze)  # else the interpreter's last collection takes half a second
    configure_tracing("toolscale", full_environment())
    settings = with_config_file(settings)
    with suppress(KeyboardInterrupt):  # also one that arrives before the service is ready
        if stdio:
            _serve_over_stdio(settings)
        else:
            _serve_over_http(settings)


def _serve_over_stdio(settings: Settings) -> None:
    with imported_at_once():
        from toolscale.embedded.stdio import serve_over_stdio  # noqa: PLC0415

    serve_over_stdio(settings)


def _serve_over_http(settings: Settings) -> None:
    with imported_at_once():
        from query.auth.authentication import authentication_of  # noqa: PLC0415
        from query.listener import open_listener  # noqa: PLC0415
        from toolscale.embedded.starting import Startup, answering  # noqa: PLC0415

    startup = Startup(_show)
    with (
        # before the model is loaded, so that errors of address and authentication appear at once
        closing(open_listener(settings, authentication_of(settings))) as listener,
        hold(settings),
        published(settings.data_dir, listener.address) as instance,
        ExitStack() as opened,
    ):
        with answering(listener, startup, instance.instance_id):
            startup.begin("loading the program")
            with imported_at_once():
                from toolscale.embedded.service import answer, running  # noqa: PLC0415

            startup.begin("opening the index and announcing the servers")
            service = opened.enter_context(running(settings))
        answer(service, listener, instance.instance_id)


def _show(step: str) -> None:
    if err.is_terminal:
        err.print(f"Starting: {step} ...", highlight=False, markup=False)
