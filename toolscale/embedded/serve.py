"""`toolscale serve`: ingestion and query service for the servers of an mcp.json, in one process.

Imports of the service take seconds, so this module imports it after the first answers.
"""

from __future__ import annotations

import atexit
import gc
import time
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from typing import TYPE_CHECKING

from shared.errors import IndexHeld
from shared.service.process import (
    full_environment,
    imported_at_once,
    interrupt_once,
    raise_open_files,
    withhold_secrets,
)
from shared.service.tracing import configure_tracing
from toolscale.client.instance import ask_to_end, published, read_instance, try_hold
from toolscale.console import err
from toolscale.mcp_clients.files import with_config_file

if TYPE_CHECKING:
    from shared.settings import Settings

# A client that looks whether it is free holds the lock for a moment, and a service that ends needs some time.
_FREE_WITHIN_S, _ENDED_WITHIN_S = 0.5, 15.0


def serve(settings: Settings, *, is_background: bool = False) -> None:
    """Follow the configured servers and answer over HTTP until a signal ends the process.

    A background service, whose caller holds the lock of the data directory, listens on loopback, and ends when it was
    not used for ten minutes.

    Raises:
        ConfigInvalid: the file has no usable server, the settings of authentication are invalid, or another
            process uses the data directory or the address.
    """
    withhold_secrets()
    raise_open_files()
    interrupt_once()
    atexit.register(gc.freeze)  # else the interpreter's last collection takes half a second
    with (
        suppress(KeyboardInterrupt),  # also one that arrives before the service is ready
        # before anything that takes time: clients wait for the process with the lock, and start no other
        nullcontext() if is_background else _hold(settings),
    ):
        configure_tracing("toolscale", full_environment())
        settings = with_config_file(settings)
        if is_background and "port" not in settings.model_fields_set:
            settings = settings.model_copy(update={"host": "127.0.0.1", "port": 0})
        _serve(settings, is_background=is_background)


def _serve(settings: Settings, *, is_background: bool) -> None:
    with imported_at_once():
        from query.auth.authentication import authentication_of  # noqa: PLC0415
        from query.listener import open_listener  # noqa: PLC0415
        from query.policy import policy_reader  # noqa: PLC0415
        from toolscale.embedded.door import Use  # noqa: PLC0415
        from toolscale.embedded.starting import Startup, answering  # noqa: PLC0415

    startup, use = Startup(_show, policy_reader(settings)), Use()
    with (
        # before the model is loaded, so that errors of address and authentication appear at once
        closing(open_listener(settings, authentication_of(settings))) as listener,
        published(
            settings.data_dir,
            listener.address,
            environment=full_environment(),
            mcp_config=settings.mcp_config,
            is_background=is_background,
        ) as instance,
        ExitStack() as opened,
    ):
        with answering(listener, startup, instance, use):
            startup.begin("loading the program")
            with imported_at_once():
                from toolscale.embedded.service import answer, running  # noqa: PLC0415

            startup.begin("opening the index and announcing the servers")
            service = opened.enter_context(running(settings))
        answer(service, listener, instance, use, startup.lists)


def _hold(settings: Settings) -> AbstractContextManager[object]:
    """Return the lock of the data directory, and end a background service that no call needs.

    Processes with a Qdrant server share their index, and need no lock.

    Raises:
        IndexHeld: another process holds it.
    """
    if settings.qdrant_url:
        return nullcontext()
    held = try_hold(settings.data_dir, _FREE_WITHIN_S)
    deadline_s = time.monotonic() + _ENDED_WITHIN_S
    while held is None and time.monotonic() < deadline_s:
        instance = read_instance(settings.data_dir)
        if not (instance and ask_to_end(instance, is_for_all=True)):
            break
        held = try_hold(settings.data_dir, _FREE_WITHIN_S)
    if held is None:
        instance = read_instance(settings.data_dir)
        served_at = f", and serves it at {instance.url}" if instance else ""
        raise IndexHeld(
            f"another Toolscale process uses {settings.data_dir}{served_at}: connect to that process over HTTP or by "
            "`toolscale serve --stdio`, use another --data-dir, or share a Qdrant server by QDRANT_URL"
        )
    return held


def _show(step: str) -> None:
    if err.is_terminal:
        err.print(f"Starting: {step} ...")
