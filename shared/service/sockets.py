"""Listening sockets."""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from typing import Any

import structlog
from typing_extensions import override

from shared.errors import ConfigInvalid
from shared.observability.line_limit import LineLimit

_OUT_OF_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_REST_S = 0.01

_log = structlog.get_logger()


class Listener(socket.socket):
    """A listening socket that closes waiting connections while no file is left for them.

    asyncio would log a traceback for each attempt, and anyio would close the listener.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._lines = LineLimit(max_lines=1)
        self._spare = _spare_file()

    @override
    def listen(self, backlog: int = socket.SOMAXCONN, /) -> None:
        """Listen with the longest queue: event loops also accept `backlog` connections at a time, which are to be few.

        The kernel closes none of the queue while the event loop is busy.
        """
        super().listen(max(backlog, socket.SOMAXCONN))

    @override
    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address.

        Raises:
            BlockingIOError: none waits, or no file is left for it.
        """
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in _OUT_OF_FILES:
                raise
            self._log(error)
        if not self._is_next_closed():
            time.sleep(_REST_S)  # else the event loop would try again at once, for ever
        raise BlockingIOError(errno.EAGAIN, "no file is left for a connection")

    @override
    def close(self) -> None:
        self._free_spare()
        super().close()

    def _is_next_closed(self) -> bool:
        """Accept a connection in place of the spare file, and close it."""
        is_closed = False
        if self._spare is not None:
            self._free_spare()
            with suppress(OSError):
                super().accept()[0].close()
                is_closed = True
        self._spare = _spare_file()
        return is_closed

    def _free_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _log(self, error: OSError) -> None:
        left_out = self._lines.admit()
        if left_out is not None:
            _log.error("files_exhausted", reason=error.strerror, left_out=left_out)


def bind(host: str, port: int, settings: str) -> Listener:
    """Return a socket that listens at this address; `settings` names its settings in an error message.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    try:
        server = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigInvalid(f"settings {settings}: cannot listen on {host}:{port}: {error.strerror}") from error
    listener = Listener(server.family, server.type, server.proto, fileno=server.detach())
    # connections inherit it; without it the end of each response waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _spare_file() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return None
