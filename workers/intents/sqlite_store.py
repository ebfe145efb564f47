"""Intents in a SQLite file, for the embedded composition: durable, and shared with `toolscale emit`."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from typing_extensions import override

from shared.errors import IntentsUnavailable, LeaseHeld
from shared.service.private_file import make_private_directory
from workers.intents.base import Change, StoredIntents, readable
from workers.intents.dead_letters import DEAD_LETTER_LIMIT, DeadLetter
from workers.intents.definitions import Definitions, DefinitionsChange, readable_definitions
from workers.intents.store import Backlog, Intent, Lease
from workers.intents.transitions import RetryPolicy

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


class SqliteIntents(StoredIntents):
    """An IntentStore in one file. Leases exclude only runs in this process, the only process that reconciles."""

    def __init__(
        self,
        path: Path,
        policy: RetryPolicy,
        dead_letter_limit: int = DEAD_LETTER_LIMIT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(policy)
        self._clock = clock
        self._dead_letter_limit = dead_letter_limit
        self._lock = threading.RLock()
        self._leased: set[str] = set()
        self._claimed: set[str] = set()
        try:
            make_private_directory(path.parent)
            self._db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
            # FULL: a transaction returns once it is on disk
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise IntentsUnavailable(f"{path}: {error}") from error

    @override
    def intent(self, server_id: str) -> Intent | None:
        with self._transaction() as db:
            return _read(db, server_id)

    @override
    def intents(self) -> Iterator[Intent]:
        with self._transaction() as db:
            rows = db.execute("SELECT server_id, intent FROM intents ORDER BY server_id").fetchall()
        return (intent for row in rows if (intent := readable(*row)))

    @override
    @contextmanager
    def lease(self, server_id: str) -> Generator[Lease]:
        with self._lock:
            if server_id in self._leased:
                raise LeaseHeld(server_id, "another run holds the lease")
            self._leased.add(server_id)
        try:
            yield _HeldByProcess()
        finally:
            with self._lock:
                self._leased.discard(server_id)

    @override
    @contextmanager
    def claim(self, keys: Collection[str]) -> Generator[frozenset[str]]:
        with self._lock:
            claimed = frozenset(keys) - self._claimed
            self._claimed |= claimed
        try:
            yield claimed
        finally:
            with self._lock:
                self._claimed -= claimed

    @override
    def is_complete(self) -> bool:
        with self._transaction() as db:
            return db.execute("SELECT 1 FROM complete").fetchone() is not None

    @override
    def mark_complete(self) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO complete VALUES (0, ?)", (time.time(),))

    @override
    def now(self) -> float:
        return self._clock()

    @override
    def next_revision(self) -> int:
        with self._transaction() as db:
            now = int(time.time() * 1_000_000)
            row = db.execute("UPDATE revision SET latest = max(latest + 1, ?) RETURNING latest", (now,)).fetchone()
            return int(row[0])

    @override
    def add_dead_letter(self, reason: str, body: str) -> None:
        with self._transaction() as db:
            letter = DeadLetter.of(time.time(), reason, body)
            row = (letter.at, letter.reason, letter.body)
            db.execute("INSERT INTO dead_letters (at, reason, body) VALUES (?, ?, ?)", row)
            db.execute(
                "DELETE FROM dead_letters WHERE number <= (SELECT max(number) FROM dead_letters) - ?",
                (self._dead_letter_limit,),
            )

    @override
    def dead_letters(self, limit: int) -> list[DeadLetter]:
        with self._transaction() as db:
            rows = db.execute(
                "SELECT at, reason, body, number FROM dead_letters ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        return [DeadLetter(at=at, reason=reason, body=body, key=str(number)) for at, reason, body, number in rows]

    @override
    def remove_dead_letter(self, letter: DeadLetter) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM dead_letters WHERE number = ?", (int(letter.key),))

    @override
    def clear_dead_letters(self) -> int:
        with self._transaction() as db:
            return db.execute("DELETE FROM dead_letters").rowcount

    @override
    def backlog(self) -> Backlog:
        now = self._clock()
        with self._transaction() as db:
            servers, first = db.execute("SELECT count(*), min(due_at) FROM intents").fetchone()
            (due,) = db.execute("SELECT count(*) FROM intents WHERE due_at <= ?", (now,)).fetchone()
            (letters,) = db.execute("SELECT count(*) FROM dead_letters").fetchone()
        return Backlog(servers, due, max(0.0, now - first) if first else 0.0, letters)

    @override
    def definitions(self, server_id: str) -> Definitions | None:
        with self._transaction() as db:
            return _read_definitions(db, server_id)

    @override
    def update_definitions(self, server_id: str, change: DefinitionsChange) -> tuple[Definitions | None, Definitions]:
        with self._transaction() as db:
            before = _read_definitions(db, server_id)
            after = change(before)
            if after != before:
                db.execute("INSERT OR REPLACE INTO definitions VALUES (?, ?)", (server_id, after.as_json()))
            return before, after

    @override
    def close(self) -> None:
        with self._lock:
            self._db.close()

    @override
    def _update(self, server_id: str, change: Change) -> tuple[Intent | None, Intent]:
        with self._transaction() as db:
            before = _read(db, server_id)
            after = change(before, self._clock())
            row = (after.server_id, after.due_at, after.model_dump_json())
            db.execute("INSERT OR REPLACE INTO intents VALUES (?, ?, ?)", row)
            return before, after

    @override
    def _changed(self, since: str) -> tuple[str, list[str] | None]:
        with self._transaction() as db:
            (last,) = db.execute("SELECT coalesce(max(position), 0) FROM changes").fetchone()
            query = "SELECT server_id FROM changes WHERE position > ?"
            changed = [row[0] for row in db.execute(query, (int(since or last),))]
        is_known = bool(since) and last >= int(since)
        return str(last), changed if is_known else None

    @override
    def _read_intents(self, server_ids: Sequence[str]) -> Iterator[tuple[str, Intent | None]]:
        return ((server_id, self.intent(server_id)) for server_id in server_ids)

    @override
    def _put_migration(self, note: str | None) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO migration VALUES (0, ?)", (note,))

    @override
    def _get_migration(self) -> str | None:
        with self._transaction() as db:
            row = db.execute("SELECT note FROM migration").fetchone()
        return row[0] if row else None

    @override
    def _drop_due(self, server_id: str) -> None:
        with self._transaction() as db:
            db.execute("UPDATE intents SET due_at = NULL WHERE server_id = ?", (server_id,))

    @override
    def _due(self, limit: int) -> list[str]:
        with self._transaction() as db:
            query = "SELECT server_id FROM intents WHERE due_at <= ? ORDER BY due_at LIMIT ?"
            return [row[0] for row in db.execute(query, (self._clock(), limit))]

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
        """Return: a lease in the process lasts until its release."""


def _read(db: sqlite3.Connection, server_id: str) -> Intent | None:
    row = db.execute("SELECT intent FROM intents WHERE server_id = ?", (server_id,)).fetchone()
    return readable(server_id, row[0]) if row else None


def _read_definitions(db: sqlite3.Connection, server_id: str) -> Definitions | None:
    row = db.execute("SELECT document FROM definitions WHERE server_id = ?", (server_id,)).fetchone()
    return readable_definitions(server_id, row[0] if row else None)
