"""Progress on its way back: from the event loop of the upstreams to that of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Takes progress, the total if it is known, and a message."""


class ProgressRelay:
    """Hands progress on in the caller's event loop; of what comes faster than the caller takes it, the latest.

    Made in the caller's loop, called in that of the upstreams.
    """

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._callers_loop = asyncio.get_running_loop()
        self._latest: tuple[float, float | None, str | None] | None = None
        self._idle: anyio.Event | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Hand this on, unless something newer comes before the caller is ready for it."""
        self._latest = (progress, total, message)
        if self._idle is not None:
            return
        self._idle = anyio.Event()
        try:
            await self._hand_on()
        finally:
            self._idle.set()
            self._idle = None

    async def drain(self) -> None:
        """Return when all has been handed on: nothing may follow the result."""
        if self._idle is not None:
            await self._idle.wait()

    async def _hand_on(self) -> None:
        while self._latest is not None:
            update, self._latest = self._latest, None
            handing = asyncio.run_coroutine_threadsafe(self._reported(update), self._callers_loop)
            await asyncio.wrap_future(handing)

    async def _reported(self, update: tuple[float, float | None, str | None]) -> None:
        await self._report(*update)
