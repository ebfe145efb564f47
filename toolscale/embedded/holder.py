"""The process that holds a data directory: its lock, and the socket where processes of the same user reach it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from shared.errors import IndexHeld
from shared.service.files import make_private_directory

if TYPE_CHECKING:
    from shared.settings import Settings

LOCK = "service.lock"
SOCKET = "service.sock"
# The address of a socket has 104 bytes on macOS and 108 on Linux, with a zero at its end.
_ADDRESS_BYTES = 103

# For the greeting: the process may be stopped.
TIMEOUT_S = 2.0


def try_hold(settings: Settings) -> AbstractContextManager[object] | None:
    """Return a lock on the data directory that this process holds until it exits it or ends; None if another does.

    Processes with a Qdrant server share their index, and need no lock.
    """
    if settings.qdrant_url:
        return nullcontext()
    make_private_directory(settings.data_dir)
    file = (settings.data_dir / LOCK).open("ab")
    if _is_locked(file):
        return file
    file.close()
    return None


def hold(settings: Settings) -> AbstractContextManager[object]:
    """Return a lock as `try_hold` does.

    Raises:
        IndexHeld: another process holds the directory.
    """
    held = try_hold(settings)
    if held is None:
        raise IndexHeld(
            f"another Toolscale process uses {settings.data_dir}: connect to that process over HTTP or by "
            "`toolscale serve --stdio`, use another data directory, or share a Qdrant server by QDRANT_URL"
        )
    return held


@contextmanager
def listening(settings: Settings) -> Generator[socket.socket | None]:
    """Yield the socket of the data directory, which only its owner can open; None where processes do not share one.

    The caller holds the lock.
    """
    if sys.platform == "win32" or settings.qdrant_url:
        yield None
        return
    path = settings.data_dir / SOCKET
    path.unlink(missing_ok=True)  # of a process that was killed
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with _short(settings.data_dir) as directory:
            listener.bind(str(directory / SOCKET))
        path.chmod(0o600)  # before `listen`, no connection is accepted
        listener.listen()
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def connect(data_dir: Path) -> socket.socket | None:
    """Return a connection to the process that holds the directory; None if none accepts it now."""
    if sys.platform == "win32":
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT_S)
    with suppress(OSError), _short(data_dir) as directory:
        connection.connect(str(directory / SOCKET))
        return connection
    connection.close()
    return None


def _is_locked(file: IO[bytes]) -> bool:
    if sys.platform == "win32":
        return True  # the index refuses a second process
    import fcntl  # noqa: PLC0415  # not on Windows

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _short(data_dir: Path) -> Generator[Path]:
    """Yield the directory, or a link to it if its path is too long for the address of a socket."""
    if len(os.fsencode(data_dir / SOCKET)) <= _ADDRESS_BYTES:
        yield data_dir
        return
    with tempfile.TemporaryDirectory(prefix="toolscale-") as directory:
        link = Path(directory) / "data"
        link.symlink_to(data_dir.resolve())
        yield link
