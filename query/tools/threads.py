"""Worker threads for tools, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

# More threads compete for the interpreter: with 40, 50 clients waited longer and got fewer responses a second.
MAX_THREADS = 8

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# a limiter belongs to one event loop
_limiter: RunVar[CapacityLimiter | None] = RunVar("toolscale tool threads", None)


async def run_in_thread(read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return the result of `read`, called in a thread; waiting calls run in their order of arrival."""
    limiter = _limiter.get()
    if limiter is None:
        _limiter.set(limiter := CapacityLimiter(MAX_THREADS))
    return await anyio.to_thread.run_sync(read, *arguments, limiter=limiter)
