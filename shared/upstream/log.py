"""The last lines that the children of a stdio server wrote to stderr, in a file for `toolscale logs`.

The file holds at least the last `KEPT_BYTES` and at most twice as much. Only its owner can read it.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog

from shared.errors import ConfigInvalid
from shared.service.files import make_private_directory, write_private

if TYPE_CHECKING:
    from shared.settings import Settings

KEPT_BYTES = 64 << 10
DIRECTORY = "logs"
STARTED = "--- started at "
"""The beginning of the line before those of a start."""

_LONGEST_LINE = 4 << 10
_LONGEST_NAME = 150
_MOST_LINES = 2_000  # between two stores
_LINE_END = re.compile(rb"\r\n|\n|\r")
_writing = threading.Lock()

_log = structlog.get_logger()


def log_directory(settings: Settings) -> Path | None:
    """Return the directory of the logs; None in the scaled composition, whose processes share no directory."""
    return settings.data_dir / DIRECTORY if settings.is_embedded else None


def log_file(directory: Path, server_id: str) -> Path:
    """Return the log of a server."""
    name = quote(server_id, safe="@")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(server_id.encode()).hexdigest()[:16]}"
    return directory / f"{name}.log"


def last_lines(directory: Path, server_id: str, most: int) -> list[str]:
    """Return the last lines in the log of a server; none if there is no log.

    Raises:
        ConfigInvalid: the file cannot be read.
    """
    path = log_file(directory, server_id)
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-most:]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error.strerror or error}") from error


class StderrLog:
    """The part of a log that one child writes, with credentials replaced; a line is stored once it ends."""

    def __init__(self, path: Path, secrets: Collection[str]) -> None:
        self._path = path
        parts = {part.encode() for secret in secrets for part in secret.splitlines() if part}
        self._secrets = sorted(parts, key=len, reverse=True)
        self._longest = _LONGEST_LINE + max(map(len, parts), default=0)
        self._rest = b""
        self._is_cut = False
        self._start = [f"{STARTED}{_now()}"]
        self._lines = [*self._start]

    def write(self, chunk: bytes) -> None:
        """Take a part of the output. Of a long line only the beginning is kept."""
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        if lines and self._is_cut:
            lines, self._is_cut = lines[1:], False
        if self._is_cut:
            self._rest = b""
        elif len(self._rest) > self._longest:  # a credential that begins before the cut is complete
            lines, self._rest, self._is_cut = [*lines, self._rest], b"", True
        self._lines = (self._lines + list(map(self._shown, filter(bytes.strip, lines))))[-_MOST_LINES:]

    def end(self, exit_code: int | None) -> None:
        """Take the end of the child; `exit_code` is None for a child that Toolscale ended."""
        if self._rest.strip():
            self._lines.append(self._shown(self._rest))
        if exit_code:
            self._lines.append(f"--- ended with exit code {exit_code} at {_now()}")
        self._rest = b""

    def take(self) -> list[str]:
        """Return the complete lines since the last call, for `store`; none before the first output."""
        if self._lines == self._start:
            return []
        lines, self._lines, self._start = self._lines, [], []
        return lines

    def store(self, lines: Collection[str]) -> None:
        """Append these lines to the file; a failure is logged, since the session does not depend on it."""
        try:
            _append(self._path, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            _log.warning("stderr_not_stored", path=str(self._path), reason=str(error))

    def _shown(self, line: bytes) -> str:
        for secret in self._secrets:
            line = line.replace(secret, b"***")
        text = line[:_LONGEST_LINE].decode("utf-8", "replace")
        return "".join(sign if sign.isprintable() or sign == "\t" else "\ufffd" for sign in text)


def _append(path: Path, text: str) -> None:
    with _writing:  # one process has the data directory, and several of its threads have children
        make_private_directory(path.parent)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            file.write(text.encode("utf-8", "replace"))
            size = file.tell()
        if size > 2 * KEPT_BYTES:
            kept = path.read_bytes()[-KEPT_BYTES:].partition(b"\n")[2]
            write_private(path, kept.decode("utf-8", "replace"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
