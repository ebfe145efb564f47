"""How a worker process ends: what is being written is finished, and nobody is waited for."""

from __future__ import annotations

import threading
import time

from workers.fetch import interrupt_fetches

_INTERRUPT_EVERY_S = 0.05


def interrupt_fetches_after(seconds: float) -> None:
    """Let the fetches that are under way end by themselves for so long, and interrupt them from then on; returns now.

    A look that is interrupted is repeated by another worker, and its server is not blamed.
    """
    threading.Thread(target=_interrupt, args=(seconds,), name="worker's end", daemon=True).start()


def _interrupt(after_s: float) -> None:
    time.sleep(after_s)
    while True:  # again and again, until the process has ended: tasks that waited in the pool start when others end
        interrupt_fetches()
        time.sleep(_INTERRUPT_EVERY_S)
