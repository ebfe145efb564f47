"""HTTP servers of tests, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypeVar

AnyServer = TypeVar("AnyServer", bound=HTTPServer)


class SilentHandler(BaseHTTPRequestHandler):
    """Logs nothing, and sends a body at once: it may wait 40 ms for the acknowledgement of its header otherwise."""

    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base class's
        """Stay silent."""


@contextmanager
def served(server: AnyServer) -> Generator[AnyServer]:
    """Serve until the block ends, then close the server."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(60)
