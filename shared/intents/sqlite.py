"""Intents in a SQLite file, for the embedded composition: durable, and shared with `toolscale emit`."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.errors import IntentsUnavailable, LeaseHeld
from shared.intents.intent import Backlog, DeadLetter
from shared.intents.storage import Kind, Lease, NoteName, Replacement
from shared.service.files import make_private_directory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
    server_id TEXT PRIMARY KEY, due_at REAL, intent TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS due ON intents (due_at) WHERE due_at IS NOT NULL;
CREATE TABLE IF NOT EXISTS dead_letters (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL, body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS complete (only INTEGER PRIMARY KEY CHECK (only = 0), at REAL NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS migration (only INTEGER PRIMARY KEY CHECK (only = 0), note TEXT) STRICT;
CREATE TABLE IF NOT EXISTS revision (only INTEGER PRIMARY KEY CHECK (only = 0), latest INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO revision VALUES (0, 0);
CREATE TABLE IF NOT EXISTS definitions (server_id TEXT PRIMARY KEY, document TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS changes (position INTEGER PRIMARY KEY AUTOINCREMENT, server_id TEXT UNIQUE NOT NULL) STRICT;
CREATE TRIGGER IF NOT EXISTS changed AFTER INSERT ON intents
    BEGIN INSERT OR REPLACE INTO changes (server_id) VALUES (NEW.server_id); END;
"""

_READ: dict[Kind, str] = {
    "intent": "SELECT intent FROM intents WHERE server_id = ?",
    "definitions": "SELECT document FROM definitions WHERE server_id = ?",
}


class SqliteStorage:
    """A Storage in one file. Leases exclude only runs in this process, the only process that reconciles."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._leased: set[str] = set()
        try:
            make_private_directory(path.parent)
            self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
            # one byte that is no UTF-8 would stop all readers
            self._db.text_factory = _decoded
            # FULL: a transaction returns once it is on disk
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise IntentsUnavailable(f"{path}: {error}") from error

    def get(self, kind: Kind, server_ids: Sequence[str]) -> tuple[float, list[str | None]]:
        """Return the time and the documents."""
        with self._transaction() as db:
            return self._clock(), [_read(db, kind, server_id) for server_id in server_ids]

    def replace(self, kind: Kind, replacements: Sequence[Replacement]) -> list[bool]:
        """Replace each document whose text is still `before`, all in one transaction."""
        with self._transaction() as db:
            return [_is_replaced(db, kind, each) for each in replacements]

    def server_ids(self) -> list[str]:
        """Return the servers with an intent, in order."""
        with self._transaction() as db:
            return [row[0] for row in db.execute("SELECT server_id FROM intents ORDER BY server_id")]

    def due(self, limit: int, longest_wait_s: float) -> list[str]:
        """Return servers that are due, the longest waiting first, and then those with a time too far ahead."""
        now = self._clock()
        with self._transaction() as db:
            query = "SELECT server_id FROM intents WHERE due_at <= ? OR due_at > ? ORDER BY due_at LIMIT ?"
            return [row[0] for row in db.execute(query, (now, now + longest_wait_s, limit))]

    def changed(self, since: str) -> tuple[str, list[str] | None]:
        """Return the changes after a position, unless it is later than the last one: the file was lost."""
        with self._transaction() as db:
            (last,) = db.execute("SELECT coalesce(max(position), 0) FROM changes").fetchone()
            query = "SELECT server_id FROM changes WHERE position > ?"
            changed = [row[0] for row in db.execute(query, (int(since or last),))]
        is_known = bool(since) and last >= int(since)
        return str(last), changed if is_known else None

    def note(self, name: NoteName) -> str | None:
        """Return a note, None when there is none."""
        with self._transaction() as db:
            row = db.execute(f"SELECT * FROM {name}").fetchone()  # noqa: S608  # one of two names
        return None if row is None or row[1] is None else str(row[1])

    def set_note(self, name: NoteName, text: str | None) -> None:
        """Replace a note; None removes it."""
        with self._transaction() as db:
            db.execute(f"DELETE FROM {name}")  # noqa: S608  # one of two names
            if text is not None:
                db.execute(f"INSERT INTO {name} VALUES (0, ?)", (text,))  # noqa: S608  # one of two names

    def add_letters(self, letters: Sequence[DeadLetter], limit: int) -> None:
        """Add dead letters, and delete the oldest beyond the limit."""
        with self._transaction() as db:
            rows = [(letter.at, letter.reason, letter.body) for letter in letters]
            db.executemany("INSERT INTO dead_letters (at, reason, body) VALUES (?, ?, ?)", rows)
            db.execute("DELETE FROM dead_letters WHERE number <= (SELECT max(number) FROM dead_letters) - ?", (limit,))

    def letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest dead letters, newest first."""
        with self._transaction() as db:
            query = "SELECT at, reason, body FROM dead_letters ORDER BY number DESC LIMIT ?"
            rows = db.execute(query, (limit,)).fetchall()
        return [DeadLetter(at=at, reason=reason, body=body) for at, reason, body in rows]

    def backlog(self, longest_wait_s: float) -> Backlog:
        """Return the backlog as of now."""
        now = self._clock()
        with self._transaction() as db:
            servers, first = db.execute("SELECT count(*), min(due_at) FROM intents").fetchone()
            query = "SELECT count(*) FROM intents WHERE due_at <= ? OR due_at > ?"
            (due,) = db.execute(query, (now, now + longest_wait_s)).fetchone()
            (letters,) = db.execute("SELECT count(*) FROM dead_letters").fetchone()
        return Backlog(servers, due, max(0.0, now - first) if first else 0.0, letters)

    @contextmanager
    def lease(self, name: str) -> Generator[Lease]:
        """Hold the lease of this name in this process until the block ends."""
        with self._lock:
            if name in self._leased:
                raise LeaseHeld(name, "another run holds the lease")
            self._leased.add(name)
        try:
            yield _HeldByProcess()
        finally:
            with self._lock:
                self._leased.discard(name)

    def now(self) -> float:
        """Return seconds since the epoch by the clock of this machine."""
        return self._clock()

    def next_revision(self) -> int:
        """Return the next revision by the clock of this machine."""
        with self._transaction() as db:
            now = int(time.time() * 1_000_000)
            row = db.execute("UPDATE revision SET latest = max(latest + 1, ?) RETURNING latest", (now,)).fetchone()
            return int(row[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                with self._db:
                    yield self._db
            except sqlite3.Error as error:
                raise IntentsUnavailable(f"intents: {error}") from error


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "replace")


class _HeldByProcess:
    def assert_held(self) -> None:
        """Return: a lease in the process lasts until its release."""


def _read(db: sqlite3.Connection, kind: Kind, server_id: str) -> str | None:
    row = db.execute(_READ[kind], (server_id,)).fetchone()
    return row[0] if row else None


def _is_replaced(db: sqlite3.Connection, kind: Kind, new: Replacement) -> bool:
    """Replace a document unless it changed since the read; the trigger notes the change of an intent."""
    if _read(db, kind, new.server_id) != new.before:
        return False
    if new.after == new.before:
        db.execute("UPDATE intents SET due_at = ? WHERE server_id = ?", (new.due_at, new.server_id))
    elif kind == "intent":
        row = (new.server_id, new.due_at, new.after)
        db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?, ?)", row)
    else:
        db.execute("INSERT OR REPLACE INTO definitions VALUES (?, ?)", (new.server_id, new.after))
    return True
