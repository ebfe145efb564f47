"""A function that a thread calls repeatedly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

# A call that hangs for longer does not delay the end of the block.
_JOIN_S = 10.0


@contextmanager
def repeated(call: Callable[[], None], every_s: float, name: str) -> Generator[None]:
    """Call a function every `every_s` seconds, in a thread of this name, until the block ends.

    The first call comes after `every_s` seconds. An exception of the function ends the repetition.
    """
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(every_s):
            call()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_JOIN_S)
