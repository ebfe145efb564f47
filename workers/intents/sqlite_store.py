"""Intents in a SQLite file, for the embedded composition: durable, and shared with `toolscale emit`."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import IntentsUnavailable, LeaseHeld
from shared.events import ServerEvent
from workers.intents.contract import LETTER_CHARACTERS, Backoff, DeadLetter, Intent, Lease, apply_event

_SCHEMA = """
CREATE TABLE IF NOT EXISTS intents (
    server_id TEXT PRIMARY KEY, lagging INTEGER NOT NULL, due_at REAL NOT NULL, intent TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS due ON intents (due_at) WHERE lagging;
CREATE TABLE IF NOT EXISTS dead_letters (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, reason TEXT NOT NULL, body TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS revision (only INTEGER PRIMARY KEY CHECK (only = 0), latest INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO revision VALUES (0, 0);
"""


class SqliteIntents:
    """An IntentStore in one file. Leases hold within this process, the only one that reconciles."""

    def __init__(self, path: Path, backoff: Backoff, dead_letter_limit: int = 10_000) -> None:
        self._backoff = backoff
        self._dead_letter_limit = dead_letter_limit
        self._lock = threading.RLock()
        self._leased: set[str] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
            # FULL: an event is acknowledged only once it is on disk
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise IntentsUnavailable(f"{path}: {error}") from error

    def record(self, event: ServerEvent, *, due_in_s: float) -> Intent:
        """Write down what the event asks and raise the desired generation; durable on return."""
        with self._transaction() as db:
            after = apply_event(_read(db, event.data.server_id), event)
            return _write(db, after.model_copy(update={"due_at": time.time() + due_in_s}))

    def intent(self, server_id: str) -> Intent | None:
        """Return a server's intent, or None when it was never announced."""
        with self._transaction() as db:
            return _read(db, server_id)

    def intents(self) -> Iterator[Intent]:
        """Return the intents of all announced servers."""
        with self._transaction() as db:
            rows = db.execute("SELECT intent FROM intents ORDER BY server_id").fetchall()
        return (Intent.model_validate_json(row[0]) for row in rows)

    def begin(self, server_id: str) -> Intent | None:
        """Count an attempt and put the next one off."""
        with self._transaction() as db:
            before = _read(db, server_id)
            return before and self._put_off(db, before, attempts=before.attempts + 1)

    def commit(self, server_id: str, generation: int) -> Intent:
        """Note that the index reflects this generation; never lowers it."""
        with self._transaction() as db:
            before = _read(db, server_id)
            if before is None:
                raise IntentsUnavailable(f"{server_id}: its intent is gone")
            committed = max(before.committed, generation)
            return _write(db, before.model_copy(update={"committed": committed, "attempts": 0}))

    def claim_due(self, limit: int) -> list[str]:
        """Return lagging servers whose time has come, and put each off by its backoff."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT intent FROM intents WHERE lagging AND due_at <= ? ORDER BY due_at LIMIT ?", (time.time(), limit)
            ).fetchall()
            due = [Intent.model_validate_json(row[0]) for row in rows]
            return [self._put_off(db, intent, attempts=intent.attempts).server_id for intent in due]

    @contextmanager
    def lease(self, server_id: str) -> Generator[Lease]:
        """Hold the server for this run; it cannot be lost, since it ends with the process."""
        with self._lock:
            if server_id in self._leased:
                raise LeaseHeld(server_id, "another run is looking at it")
            self._leased.add(server_id)
        try:
            yield _HeldByProcess()
        finally:
            with self._lock:
                self._leased.discard(server_id)

    def next_revision(self) -> int:
        """Return microseconds since the epoch, always more than any revision before."""
        with self._transaction() as db:
            now = int(time.time() * 1_000_000)
            row = db.execute("UPDATE revision SET latest = max(latest + 1, ?) RETURNING latest", (now,)).fetchone()
            return int(row[0])

    def bury(self, reason: str, body: str) -> None:
        """Keep a refused message for people to see; the oldest beyond the limit go."""
        with self._transaction() as db:
            body = body[:LETTER_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
            db.execute("INSERT INTO dead_letters (at, reason, body) VALUES (?, ?, ?)", (time.time(), reason, body))
            db.execute(
                "DELETE FROM dead_letters WHERE number <= (SELECT max(number) FROM dead_letters) - ?",
                (self._dead_letter_limit,),
            )

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """Return the latest refused messages, newest first."""
        with self._transaction() as db:
            rows = db.execute(
                "SELECT at, reason, body FROM dead_letters ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        return [DeadLetter(at=at, reason=reason, body=body) for at, reason, body in rows]

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._db.close()

    def _put_off(self, db: sqlite3.Connection, intent: Intent, *, attempts: int) -> Intent:
        due_at = time.time() + self._backoff.after(attempts)
        return _write(db, intent.model_copy(update={"attempts": attempts, "due_at": due_at}))

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                with self._db:
                    yield self._db
            except sqlite3.Error as error:
                raise IntentsUnavailable(f"intents: {error}") from error


class _HeldByProcess:
    def assert_held(self) -> None:
        """Return: a lease within the process is held until it is released."""


def _read(db: sqlite3.Connection, server_id: str) -> Intent | None:
    row = db.execute("SELECT intent FROM intents WHERE server_id = ?", (server_id,)).fetchone()
    return Intent.model_validate_json(row[0]) if row else None


def _write(db: sqlite3.Connection, intent: Intent) -> Intent:
    db.execute(
        "INSERT OR REPLACE INTO intents VALUES (?, ?, ?, ?)",
        (intent.server_id, int(intent.is_lagging), intent.due_at, intent.model_dump_json()),
    )
    return intent
