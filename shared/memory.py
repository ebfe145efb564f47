"""Less resident memory, by settings of the C library where it is glibc."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_THRESHOLD_BYTES = 128 << 10


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
