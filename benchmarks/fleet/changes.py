"""Events at a steady rate: `changed` for one server after the other."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from benchmarks.throughput.embedded import Producer
from shared.events import ServerChanged, ServerRef


@contextmanager
def changes(producer: Producer, server_ids: Sequence[str], rate: float) -> Generator[list[str]]:
    """Send so many events a second until the block ends; yields the servers they were sent for, so far."""
    stopped = threading.Event()
    sent: list[str] = []

    def send() -> None:
        for _, server_id in zip(ticks(rate, stopped), itertools.cycle(server_ids), strict=False):
            producer.emit(ServerChanged(data=ServerRef(server_id=server_id)))
            sent.append(server_id)

    thread = threading.Thread(target=send, name="changes", daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stopped.set()
        thread.join()


def ticks(rate: float, stopped: threading.Event, within_s: float = math.inf) -> Generator[None]:
    """Yield so many times a second, without catching up on what was missed, until stopped or the time is over."""
    end_s = time.monotonic() + within_s
    while not stopped.is_set() and (now_s := time.monotonic()) < end_s:
        yield
        stopped.wait(max(0.0, now_s + 1 / rate - time.monotonic()))
