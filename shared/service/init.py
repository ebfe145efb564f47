"""Process 1 of a container, run as a script: forwards signals to the service, and reaps orphaned processes.

It runs without the environment of the service, which every process of the container could read from process 1.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

FORWARDED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
_SI_KERNEL = 0x80


def main(service: int) -> int:
    """Return the exit code of the service, the process with this id, when it has ended."""
    expected = FORWARDED | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, expected)
    while (code := _exit_code(service)) is None:
        received = signal.sigwaitinfo(expected)
        # the kernel sends the signals of a terminal, such as Ctrl-C, to the service too
        if received.si_signo in FORWARDED and received.si_code != _SI_KERNEL:
            with suppress(ProcessLookupError):
                os.kill(service, received.si_signo)
    return code


def _exit_code(service: int) -> int | None:
    """Reap all ended children; return the exit code of the service if it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == service:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if not pid:
            return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
