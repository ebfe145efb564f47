"""A function that a thread calls again and again, whatever it raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from shared.service.logging import FailureLog

# A call that hangs for longer does not delay the end of the block.
_JOIN_S = 10.0


@contextmanager
def every(
    seconds: float, call: Callable[[], object], failed: str, *, first_after_s: float = 0.0, **fields: object
) -> Generator[None]:
    """Call a function in a thread, and again `seconds` after each end of a call, until the block ends.

    The log has what it raises as the event `failed` with these fields: a line for each kind of error and minute.
    """
    stopped, failures = threading.Event(), FailureLog(failed)

    def run() -> None:
        if stopped.wait(first_after_s):
            return
        while True:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  # a panic of a native library is no Exception
                failures.log(error, **fields)
            if stopped.wait(seconds):
                return

    thread = threading.Thread(target=run, name=f"toolscale {failed}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(_JOIN_S)
