"""A worker without a terminal ignores SIGHUP: it has no secrets in its environment for a second start."""

from __future__ import annotations

import signal
from types import FrameType

from celery import bootsteps
from typing_extensions import override


class IgnoresHangup(bootsteps.StartStopStep):
    """Replaces the handler by which Celery would start the program again; a worker at a terminal has no handler."""

    @override
    def start(self, parent: object) -> None:
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
            # a handler, since child processes would inherit SIG_IGN
            signal.signal(signal.SIGHUP, _ignore)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass
