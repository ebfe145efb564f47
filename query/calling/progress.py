"""Progress from the event loop of the upstreams to the caller's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from shared.text.invisible import mark_text

ReportProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Receives progress, the total if it is known, and a message."""


class ProgressRelay:
    """Reports progress in the caller's event loop; a slow caller gets only the latest.

    Created in the caller's loop, called in the upstreams' loop.
    """

    def __init__(self, report: ReportProgress) -> None:
        self._report = report
        self._callers_loop = asyncio.get_running_loop()
        self._latest: tuple[float, float | None, str | None] | None = None
        self._idle: anyio.Event | None = None

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report this, unless newer progress arrives before the caller is ready."""
        self._latest = (progress, total, mark_text(message) if message else message)
        if self._idle is not None:
            return
        self._idle = anyio.Event()
        try:
            await self._hand_on()
        finally:
            self._idle.set()
            self._idle = None

    async def drain(self) -> None:
        """Return when all progress is reported: none may follow the result."""
        if self._idle is not None:
            await self._idle.wait()

    async def _hand_on(self) -> None:
        while self._latest is not None:
            update, self._latest = self._latest, None
            handing = asyncio.run_coroutine_threadsafe(self._reported(update), self._callers_loop)
            await asyncio.wrap_future(handing)

    async def _reported(self, update: tuple[float, float | None, str | None]) -> None:
        await self._report(*update)
