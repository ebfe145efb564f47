"""The processes of stdio servers: each child, and all that it started, also what left its group and its session.

A variable marks them: it is inherited where neither the parent nor the session tells any more whose process it is.
This module is also the program of a supervisor, which ends what a killed process of Toolscale leaves. A signal at the
parent's death would not do: it comes at the end of the thread that started the child. The supervisor's input ends with
the process, however that ends.
"""

from __future__ import annotations

import itertools
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path

MARK = "STARTED_BY_TOOLSCALE"
"""The variable; a process that is to outlive its server is started without it."""

INSTALLER_GRACE_S = 20.0
"""Seconds between SIGTERM and SIGKILL for a child that has sent no message."""
# Together with the waits for the processes: within three seconds.
_LEFT_EXIT_S, _LEFT_TERMINATE_S = 1.0, 1.0
_POLL_S = 0.05
_REPEATED = 20

_PROC = Path("/proc")
_START = 18  # the field of the start time, after the state

Process = tuple[int, int]
"""The id of a process and its start: an id is used again."""


class Supervisor:
    """The supervisor of this process, started with its first child."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._pipe: int | None = None
        self._name = ""
        self._lock = threading.Lock()

    def mark(self) -> str:
        """Return the mark of a new child, which counts as an installer until `answered`."""
        number = next(self._numbers)
        with self._lock:
            if not self._toggle(number):  # there is none yet, or somebody has killed it
                self._start()
                self._toggle(number)
            return f"{self._name}-{number}."

    def answered(self, mark: str) -> None:
        """Note, once, that a child has sent a message, or has ended."""
        self._toggle(int(mark.rpartition("-")[2][:-1]))

    def forget(self) -> None:
        """Let a forked process have a supervisor of its own: this one waits for the parent."""
        self._close()
        self._name = ""
        self._lock = threading.Lock()

    def _start(self) -> None:
        self._close()
        self._name = self._name or secrets.token_hex(8)
        read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        # in a session of its own, so that Ctrl-C in a terminal does not end it, and without our variables
        process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-I", "-S", __file__, self._name],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            cwd="/",
            start_new_session=True,
        )
        process.returncode = 0  # it ends after this process, which does not wait for it
        os.close(read)

    def _toggle(self, number: int) -> bool:
        try:
            return self._pipe is not None and os.write(self._pipe, b"%d\n" % number) > 0
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = None


SUPERVISOR = Supervisor()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=SUPERVISOR.forget)


def processes_of(marks: tuple[str, ...], leader: int = 0, known: Set[Process] = frozenset()) -> set[Process]:
    """Return the living processes whose mark begins with one of these, of this session, or known, and all they started.

    A process that cleared its environment and left its session is found while its parent lives, or if it is `known`.
    """
    table = {process: of for process, of in _processes() if process[0] != os.getpid()}
    found = {process for process in table if _mark(process[0]).startswith(marks)} | (known & table.keys())
    ids = {pid for pid, _ in found} | {leader} - {0}
    while more := {process for process, of in table.items() if process not in found and not ids.isdisjoint(of)}:
        found |= more
        ids |= {pid for pid, _ in more}
    return found


def living(processes: Iterable[Process]) -> set[Process]:
    """Return those of these processes that live; no zombie does."""
    wanted = set(processes)
    return {process for process, _ in _processes({str(pid) for pid, _ in wanted})} & wanted


def signal_all(processes: Iterable[Process], number: int) -> None:
    """Send a signal to these processes, but for those that have ended or belong to another user."""
    for pid, _ in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _processes(names: Collection[str] = ()) -> Iterator[tuple[Process, set[int]]]:
    """Yield each living process of these, or of all, with its own id and those of its parent, group and session."""
    if not _PROC.is_dir():
        columns = ["-o", "pid=,ppid=,pgid=,stat="]
        listed = subprocess.run(["ps", "-A", *columns], capture_output=True, check=False)  # noqa: S603, S607
        for pid, parent, group, state in map(bytes.split, listed.stdout.splitlines()):
            if not state.startswith(b"Z") and (not names or pid.decode() in names):
                yield (int(pid), 0), {int(pid), int(parent), int(group)}
        return
    for name in names or filter(str.isdecimal, os.listdir(_PROC)):  # noqa: PTH208  # names alone
        with suppress(OSError):  # it has ended
            state, *fields = Path(_PROC, name, "stat").read_bytes().rpartition(b")")[2].split()
            if state not in b"ZX":
                yield (int(name), int(fields[_START])), {int(name), *map(int, fields[:3])}


def _mark(pid: int) -> str:
    with suppress(OSError):  # another user's
        variables = Path(_PROC, str(pid), "environ").read_bytes()
        return (b"\0" + variables).partition(f"\0{MARK}=".encode())[2].partition(b"\0")[0].decode("ascii", "replace")
    return ""


def _supervise(name: str) -> None:
    """Wait for the end of the process with this name in its marks, then end what it left."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    installing: set[bytes] = set()
    for line in sys.stdin.buffer:
        installing ^= {line.strip()}
    patient = tuple(f"{name}-{number.decode()}." for number in installing)

    known = processes_of((f"{name}-",))

    def left() -> set[Process]:
        known.update(processes_of((f"{name}-",), known=known))
        return living(known)

    def usual() -> set[Process]:
        return left() - processes_of(patient)

    _wait(left, _LEFT_EXIT_S)  # their input has ended too
    signal_all(left(), signal.SIGTERM)
    _wait(usual, _LEFT_TERMINATE_S)
    _kill(usual)
    _wait(left, INSTALLER_GRACE_S - _LEFT_TERMINATE_S)
    _kill(left)


def _wait(left: Callable[[], set[Process]], seconds: float) -> None:
    ends_s = time.monotonic() + seconds
    while time.monotonic() < ends_s and left():
        time.sleep(_POLL_S)


def _kill(left: Callable[[], set[Process]]) -> None:
    for _ in range(_REPEATED):  # one that was about to start another
        if not (processes := left()):
            return
        signal_all(processes, signal.SIGKILL)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    _supervise(sys.argv[1])
