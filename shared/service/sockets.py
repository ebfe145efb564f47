"""Listening sockets."""

from __future__ import annotations

import socket

from shared.errors import ConfigInvalid


def bind(host: str, port: int, settings: str) -> socket.socket:
    """Return a socket that listens at this address; `settings` names its settings in an error message.

    Raises:
        ConfigInvalid: the address cannot be bound.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigInvalid(f"settings {settings}: cannot listen on {host}:{port}: {error.strerror}") from error
    # connections inherit it; without it the end of each response waits 40 ms for an acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
