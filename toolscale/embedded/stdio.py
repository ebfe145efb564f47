"""`toolscale serve --stdio`: a front for the client, and the service in this process or in another."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import structlog

from shared.errors import ConfigInvalid, ToolscaleError
from shared.service.process import ignore_interrupts, imported_at_once
from toolscale.embedded.front import Front
from toolscale.embedded.holder import connect, try_hold
from toolscale.embedded.streams import Welcome, hello_of

if TYPE_CHECKING:
    import socket

    from shared.settings import Settings

# The client's first messages are answered before the service takes the processor.
HEAD_START_S = 0.5
RETRY_S = 0.1

_log = structlog.get_logger()


def serve_over_stdio(settings: Settings) -> None:
    """Answer the client until it leaves; one process of a data directory has the service, the others forward to it.

    Raises:
        ToolscaleError: the service could not start; the client received the reason, and has left.
    """
    front = Front(has_toolset=settings.stdio_toolset is not None)
    front.start()
    front.is_listed.wait(HEAD_START_S)
    try:
        while not front.has_ended.is_set():
            _serve_or_forward(front, settings)
    except ToolscaleError as error:
        _log.error("query_service_failed", kind=type(error).__name__, reason=str(error))
        front.fail(f"Toolscale could not start: {error}")
        front.has_ended.wait()
        raise


def _serve_or_forward(front: Front, settings: Settings) -> None:
    """Return when the client has left, or the connection to the process that holds the data directory has ended."""
    held = try_hold(settings)
    if held:
        with held, ExitStack() as service:
            with _interrupted_by(front.has_ended):
                connection = _open_service(settings, service)
            front.link(connection)
            front.has_ended.wait()
            ignore_interrupts()
    elif joined := _joined(settings):
        front.link(joined)
        front.is_unlinked.wait()
    else:
        front.has_ended.wait(RETRY_S)


def _open_service(settings: Settings, opened: ExitStack) -> socket.socket:
    """Start the service in this process, which `opened` closes, and return a connection to it."""
    with imported_at_once():
        from toolscale.embedded.service import sessions_only  # noqa: PLC0415  # loads both sides: seconds

    connection = opened.enter_context(sessions_only(settings)).open_connection()
    _greet(connection, settings)
    return connection


def _joined(settings: Settings) -> socket.socket | None:
    """Return a connection to the process that holds the data directory; None if it does not answer now.

    Raises:
        ConfigInvalid: it follows another `mcp.json`.
    """
    connection = connect(settings.data_dir)
    if connection is None:
        return None
    try:
        _greet(connection, settings)
    except OSError:
        connection.close()
        return None
    _log.info("service_joined", data_dir=str(settings.data_dir))
    return connection


def _greet(connection: socket.socket, settings: Settings) -> None:
    """Introduce the client of this process.

    Raises:
        ConfigInvalid: the service follows another `mcp.json`.
        OSError: the process of the service has ended, or does not answer.
    """
    hello = hello_of(settings.stdio_groups, settings.stdio_toolset, settings.mcp_config)
    with connection.makefile("rwb") as lines:
        lines.write(hello.model_dump_json().encode() + b"\n")
        lines.flush()
        welcome = lines.readline()
    if not welcome:
        raise ConnectionResetError
    refusal = Welcome.model_validate_json(welcome).refusal
    if refusal:
        connection.close()
        raise ConfigInvalid(refusal)


@contextmanager
def _interrupted_by(ended: threading.Event) -> Generator[None]:
    """Raise KeyboardInterrupt in this block of the main thread as soon as the event is set."""
    changing, is_inside = threading.Lock(), True

    def interrupt() -> None:
        ended.wait()
        with changing:
            if is_inside:
                _interrupt_main()

    threading.Thread(target=interrupt, name="stdio end", daemon=True).start()
    try:
        yield
    finally:
        with changing:
            is_inside = False


def _interrupt_main() -> None:
    if hasattr(signal, "pthread_kill"):
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        signal.raise_signal(signal.SIGINT)
