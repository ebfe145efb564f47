"""The signals that end a process: the first one counts."""

from __future__ import annotations

import signal
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)


def interrupt_once() -> None:
    """Let the first SIGINT or SIGTERM raise KeyboardInterrupt in the main thread, and ignore the others.

    Another KeyboardInterrupt would break off a `finally` block, and the process could wait forever for the thread
    that the block stops. MCP clients close stdin and send SIGTERM two seconds later.
    """
    for number in _ENDING:
        signal.signal(number, _interrupt)


def ignore_interrupts() -> None:
    """Ignore SIGINT and SIGTERM from now on, because the process ends already."""
    for number in _ENDING:
        signal.signal(number, _ignore)  # SIG_IGN would pass on to child processes


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    ignore_interrupts()
    raise KeyboardInterrupt


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
