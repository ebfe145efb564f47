"""An interrupt that got lost is sent again.

A finaliser, and native code that cannot hand an exception on, has Python report it, and goes on. pydantic does so at
instants while it makes a model: a Ctrl-C at such an instant ended nothing, and a command that waits went on waiting.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

# Long enough for the report to be over, in which the next one would be lost too.
PAUSE_S = 0.05


@contextmanager
def lost_interrupts_sent_again() -> Generator[None]:
    """Within the block, send an interrupt again whose exception was reported instead of raised; report all others."""
    report = sys.unraisablehook

    def heed(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            again = threading.Timer(PAUSE_S, _interrupt)
            again.daemon = True  # a command that is done meanwhile does not stay for it
            again.start()
        else:
            report(unraisable)

    sys.unraisablehook = heed
    try:
        yield
    finally:
        sys.unraisablehook = report


def _interrupt() -> None:
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        _thread.interrupt_main()
    else:
        signal.pthread_kill(main, signal.SIGINT)  # ends its wait for a lock or a socket, too
