"""The process itself: its open files, memory, imports, signals, and secrets."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections import ChainMap
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType

MAX_FILES = 65_536
"""Enough for the largest fleet in docs/scaling.md. Child processes inherit the limit, and some visit each number."""
# macOS allows no more if its hard limit is infinite.
_MAX_ON_MACOS = 10_240

MAX_CALLERS = 2_048
"""Connections of callers to a listener; each takes 30 KB, and at most 320 KB of unread bytes."""
# The rest is for the stores, the servers, and connections that are being accepted or closed.
_CALLERS_PART = 4

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_THRESHOLD_BYTES = 128 << 10

_ENDING = (signal.SIGINT, signal.SIGTERM)

_PR_SET_DUMPABLE = 4
_SECRETS = frozenset(
    {
        "REDIS_URL",
        "REDIS_PASSWORD",
        "QDRANT_API_KEY",
        "EVENTS_TOKEN",
        "SECRET_KEY",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    }
)
_PREFIX = "TOOLSCALE_"
# the secrets of servers, and the token of commands
_OF_COMMANDS = ("TOOLSCALE_CREDENTIAL_", "TOOLSCALE_TOKEN")

_INIT = Path(__file__).with_name("init.py")

_withheld: dict[str, str] = {}


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, at most to MAX_FILES; return the number of files allowed."""
    if sys.platform == "win32":
        return MAX_FILES
    import resource  # noqa: PLC0415  # not on Windows

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (min(limit, MAX_FILES) if limit >= 0 else MAX_FILES for limit in limits)  # -1 is infinite
    for wanted in (hard, min(hard, _MAX_ON_MACOS)):
        with suppress(ValueError, OSError):
            if soft < wanted:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
                soft = wanted
    return soft


def caller_connections() -> int:
    """Return the number of connections that callers may hold to a listener, and raise the limit of open files."""
    return max(1, min(MAX_CALLERS, raise_open_files() // _CALLERS_PART))


def return_freed_memory_early() -> None:
    """Let this process return freed memory to the system, and share one heap between its threads.

    By default, up to eight heaps for each core keep the memory that their threads freed.
    Each large block that is freed also raises the size above which the next ones are returned.
    """
    library = _glibc()
    if library:
        library.mallopt(_M_ARENA_MAX, 1)
        library.mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _THRESHOLD_BYTES)


def return_freed_memory() -> None:
    """Return the freed memory of this process to the system now: a millisecond."""
    library = _glibc()
    if library:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


@contextmanager
def imported_at_once() -> Generator[None]:
    """Import in the block without garbage collections: they take a fifth of the time, and find next to nothing.

    Later collections leave out all objects of that time too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def interrupt_once() -> None:
    """Let the first SIGINT or SIGTERM raise KeyboardInterrupt in the main thread, and ignore the others.

    Another KeyboardInterrupt would break off a `finally` block, and the process could wait forever for the thread
    that the block stops. MCP clients close stdin and send SIGTERM two seconds later.
    """
    for number in _ENDING:
        signal.signal(number, _interrupt)


def ignore_interrupts() -> None:
    """Ignore SIGINT and SIGTERM from now on, because the process ends already."""
    for number in _ENDING:
        signal.signal(number, _ignore)  # SIG_IGN would pass on to child processes


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    ignore_interrupts()
    raise KeyboardInterrupt


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass


def protect_memory() -> None:
    """Make the memory and the environment of this process, and of its forks, unreadable for its user; Linux only.

    The kernel then also writes no core dump, and lets no debugger of this user attach.
    In process 1 of a container, this function returns in a child, and process 1 becomes `shared.service.init`.

    Raises:
        OSError: the kernel refused.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "the memory of this process cannot be protected")
    if os.getpid() != 1:
        return
    from shared.service.init import FORWARDED  # noqa: PLC0415  # Windows has not all of these signals

    # blocked signals wait, also during `execve`, until process 1 forwards them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    if service := os.fork():
        os.execve(sys.executable, [sys.executable, "-I", "-S", str(_INIT), str(service)], {})  # noqa: S606  # a shell would have nothing to add
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def withhold_secrets() -> None:
    """Move the secrets of Toolscale out of `os.environ`, which child processes inherit, after the settings were read.

    The kernel's copy of the first environment stays; `protect_memory` protects it.
    """
    for name in list(os.environ):
        plain = name.upper()
        if plain.removeprefix(_PREFIX) in _SECRETS or plain.startswith(_OF_COMMANDS):
            _withheld[name] = os.environ.pop(name)


def full_environment() -> Mapping[str, str]:
    """Return the environment with the withheld secrets, for credentials and for `${NAME}` in an `mcp.json`."""
    return ChainMap(_withheld, os.environ)
