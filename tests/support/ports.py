"""Free loopback ports for programs that open their own."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that the system gives to no other socket for a minute, so that a slow program still gets it.

    A closed connection on the port does that: a program may listen on it, but no process gets it as any free port.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # the side that closes first waits
        return port
