"""Answers are made in threads, a few at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

# More only take the interpreter from each other: 50 clients got fewer answers a second from 40, and waited longer.
MAX_THREADS = 8

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_limiter: RunVar[CapacityLimiter] = RunVar("toolscale reading")


async def run_in_thread(read: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Return what `read` returns, called in a thread; who comes first is served first."""
    return await anyio.to_thread.run_sync(read, *arguments, limiter=_of_this_loop())


def _of_this_loop() -> CapacityLimiter:
    try:
        return _limiter.get()
    except LookupError:
        _limiter.set(made := CapacityLimiter(MAX_THREADS))
        return made
