"""The number of connections for notifications that this process may open."""

from __future__ import annotations

from shared.service.open_files import caller_connections, raise_open_files

# The servers of the largest fleet in docs/scaling.md; the resync finds changes of the other servers.
MAX_CONNECTIONS = 10_000
# A stdio server has three pipes; an HTTP server has a stream, and a connection for requests.
FILES_PER_CONNECTION = 3
# Redis, the broker, logs, and connections that are being opened.
OTHER_FILES = 200


def connection_limit() -> int:
    """Raise the limit of open files, and return the number of connections that it allows."""
    free = raise_open_files() - OTHER_FILES - caller_connections()
    return max(1, min(MAX_CONNECTIONS, free // FILES_PER_CONNECTION))
