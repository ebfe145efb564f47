"""The history in an SQLite file, for the embedded composition; `toolscale savings` may read it concurrently."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from typing_extensions import override

from query.history.store import (
    COUNTER_OVERHEAD_BYTES,
    MAX_BYTES_A_DAY,
    Counts,
    RowKey,
    Rows,
    SavingsHistory,
    ServerSize,
    Sizes,
    Sums,
    TotalSize,
    TotalSizes,
)
from shared.errors import HistoryUnavailable
from shared.service.files import make_private_directory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
    day TEXT, caller TEXT, server TEXT, tool TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (day, caller, server, tool, counter)) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sizes (
    day TEXT, server TEXT, tools INTEGER NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (day, server)) STRICT, WITHOUT ROWID;
"""
_ADD = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount
"""
_BYTES = """
SELECT coalesce(sum(length(CAST(caller || server || tool || counter AS BLOB)) + ?), 0) FROM counters WHERE day = ?
"""
_SUMS = """
SELECT caller, server, tool, counter, sum(amount) FROM counters
WHERE day BETWEEN ? AND ? AND counter IN (SELECT value FROM json_each(?)) GROUP BY caller, server, tool, counter
"""
# two conditions on the columns are twice as fast as sums over a common one
_TOTALS = """
SELECT day, sum(tools > 0), sum(tools), sum(tokens) FROM (
    SELECT
        day,
        iif(?3 IS NULL OR server IN (SELECT value FROM json_each(?3)), tools, 0) AS tools,
        iif(?3 IS NULL OR server IN (SELECT value FROM json_each(?3)), tokens, 0) AS tokens
    FROM sizes WHERE day BETWEEN ?1 AND ?2)
GROUP BY day
"""
_UNUSABLE = "the history of savings cannot be used: {}"


class SqliteHistory(SavingsHistory):
    """A SavingsHistory in one file."""

    def __init__(
        self,
        path: Path,
        keep_days: int,
        max_bytes: int = MAX_BYTES_A_DAY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep_days = keep_days
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock, self._reading = threading.Lock(), threading.Lock()
        try:
            make_private_directory(path.parent)
            self._db, self._reader = _connected(path), _connected(path)
            # NORMAL: a crash of the machine may lose the last rows, but never the file
            self._db.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;" + _SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise HistoryUnavailable(f"{path}: {error}") from error

    @override
    def add(self, rows: Rows) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM counters WHERE day < ?", (self._oldest(),))
            sizes = {day: _bytes_of(db, day.isoformat()) for day in {key.day for key in rows}}
            for key, counters in rows.items():
                where = _columns(key)
                if not _is_known(db, where):
                    if sizes[key.day] < self._max_bytes:
                        sizes[key.day] += _cost(key, counters)
                    else:
                        where = _columns(key.overflow)
                db.executemany(_ADD, [(*where, counter, amount) for counter, amount in counters.items()])

    @override
    def rows(self, first: date, last: date) -> Rows:
        query = "SELECT * FROM counters WHERE day BETWEEN ? AND ? ORDER BY day, caller, server, tool"
        by_row = groupby(self._fetched(query, first, last), key=itemgetter(0, 1, 2, 3))
        return {
            RowKey(date.fromisoformat(day), caller, server, tool): {each[4]: each[5] for each in of_row}
            for (day, caller, server, tool), of_row in by_row
        }

    @override
    def sums(self, first: date, last: date, counters: Collection[str]) -> Sums:
        sums: dict[tuple[str, str, str], dict[str, int]] = {}
        for *key, counter, amount in self._fetched(_SUMS, first, last, json.dumps(list(counters))):
            sums.setdefault((key[0], key[1], key[2]), {})[counter] = amount
        return sums

    @override
    def store_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        rows = [(day.isoformat(), server, size.tools, size.tokens) for server, size in sizes.items()]
        with self._transaction() as db:
            db.execute("DELETE FROM sizes WHERE day < ?", (self._oldest(),))
            db.executemany("INSERT OR REPLACE INTO sizes VALUES (?, ?, ?, ?)", rows)

    @override
    def sizes(self, first: date, last: date, server: str | None = None) -> Sizes:
        query = "SELECT * FROM sizes WHERE day BETWEEN ?1 AND ?2 AND (?3 IS NULL OR server = ?3)"
        fetched = self._fetched(query, first, last, server)
        days: dict[date, dict[str, ServerSize]] = {}
        for day, name, tools, tokens in fetched:
            days.setdefault(date.fromisoformat(day), {})[name] = ServerSize(tools, tokens)
        return days

    @override
    def total_sizes(self, first: date, last: date, servers: Collection[str] | None = None) -> TotalSizes:
        names = None if servers is None else json.dumps(list(servers))
        fetched = self._fetched(_TOTALS, first, last, names)
        return {date.fromisoformat(day): TotalSize(*sums) for day, *sums in fetched}

    @override
    def close(self) -> None:
        with self._lock, self._reading:
            self._db.close()
            self._reader.close()

    def _oldest(self) -> str:
        """Return the first day to keep."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        return (now.date() - timedelta(days=self._keep_days - 1)).isoformat()

    def _fetched(self, query: str, first: date, last: date, *more: str | None) -> list[tuple[Any, ...]]:
        """Return the rows of a query of these days, over a connection that waits for no write."""
        try:
            with self._reading:
                return self._reader.execute(query, (first.isoformat(), last.isoformat(), *more)).fetchall()
        except sqlite3.Error as error:
            raise HistoryUnavailable(_UNUSABLE.format(error)) from error

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        try:
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
        except sqlite3.Error as error:
            raise HistoryUnavailable(_UNUSABLE.format(error)) from error


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5, check_same_thread=False, isolation_level=None)


def _columns(key: RowKey) -> tuple[str, str, str, str]:
    return key.day.isoformat(), key.caller, key.server, key.tool


def _is_known(db: sqlite3.Connection, columns: tuple[str, str, str, str]) -> bool:
    query = "SELECT 1 FROM counters WHERE (day, caller, server, tool) = (?, ?, ?, ?) LIMIT 1"
    return db.execute(query, columns).fetchone() is not None


def _bytes_of(db: sqlite3.Connection, day: str) -> int:
    return int(db.execute(_BYTES, (COUNTER_OVERHEAD_BYTES, day)).fetchone()[0])


def _cost(key: RowKey, counters: Counts) -> int:
    """Return the bytes that _BYTES counts for these counters."""
    return sum(
        len(f"{key.caller}{key.server}{key.tool}{counter}".encode()) + COUNTER_OVERHEAD_BYTES for counter in counters
    )
