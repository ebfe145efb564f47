"""The number of files, sockets included, that a process may open."""

from __future__ import annotations

import sys
from contextlib import suppress

MAX_FILES = 65_536
"""Enough for the largest fleet in docs/scaling.md. Child processes inherit the limit, and some visit each number."""
# macOS allows no more if its hard limit is infinite.
_MAX_ON_MACOS = 10_240

MAX_CALLERS = 2_048
"""Connections of callers to a listener; each takes 30 KB, and at most 320 KB of unread bytes."""
# The rest is for the stores, the servers, and connections that are being accepted or closed.
_CALLERS_PART = 4


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most to MAX_FILES; return the number of files allowed."""
    if sys.platform == "win32":
        return MAX_FILES
    import resource  # noqa: PLC0415  # not on Windows

    soft, hard = (_finite(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    for wanted in (hard, min(hard, _MAX_ON_MACOS)):
        with suppress(ValueError, OSError):
            if soft < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
                soft = wanted
    return soft


def caller_connections() -> int:
    """Return the number of connections that callers may hold to a listener, and raise the limit of open files."""
    return max(1, min(MAX_CALLERS, raise_open_files() // _CALLERS_PART))


def _finite(limit: int) -> int:
    return MAX_FILES if limit < 0 else min(limit, MAX_FILES)
