"""The number of connections for notifications that this process may open."""

from __future__ import annotations

import sys
from contextlib import suppress

# The servers of the largest fleet in docs/scaling.md; the resync finds changes of the other servers.
MAX_CONNECTIONS = 10_000
# A stdio server has three pipes; an HTTP server has a stream, and a connection for requests.
FILES_PER_CONNECTION = 3
# Redis, the broker, logs, the port for metrics, and connections that are being opened.
OTHER_FILES = 200


def connection_limit() -> int:
    """Raise the soft limit of open files as far as needed, and return the number of connections that it allows."""
    if sys.platform == "win32":
        return MAX_CONNECTIONS
    import resource  # noqa: PLC0415  # not on Windows

    needed = OTHER_FILES + FILES_PER_CONNECTION * MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed, possible = (needed if limit == resource.RLIM_INFINITY else min(needed, limit) for limit in (soft, hard))
    if allowed < possible:
        with suppress(ValueError, OSError):  # macOS allows fewer than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
            allowed = possible
    return max(1, (allowed - OTHER_FILES) // FILES_PER_CONNECTION)
