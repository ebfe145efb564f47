"""Usage in an SQLite file, for the embedded composition; `toolscale savings` may read it concurrently."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from datetime import date, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from typing_extensions import override

from query.usage.usage import CatalogueSize, Counts, RowKey, Rows, Usage, Use, bounded, today
from shared.errors import HistoryUnavailable
from shared.service.files import make_private_directory

# `sizes` had the sizes of all servers
_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (
    day TEXT, caller TEXT, server TEXT, tool TEXT, counter TEXT, amount INTEGER NOT NULL,
    PRIMARY KEY (day, caller, server, tool, counter)) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS counters_by_tool ON counters (server, tool, day);
CREATE TABLE IF NOT EXISTS catalogue_sizes (
    day TEXT PRIMARY KEY, servers INTEGER NOT NULL, tools INTEGER NOT NULL, tokens INTEGER NOT NULL) STRICT;
DROP TABLE IF EXISTS sizes;
"""
_ADD = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount
"""
_RAISE = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET amount = excluded.amount WHERE amount < excluded.amount
"""
_IS_KNOWN = "SELECT 1 FROM counters WHERE (day, caller, server, tool) = (?, ?, ?, ?) LIMIT 1"
_SUMS = """
SELECT caller, server, tool, counter, sum(amount) FROM counters
WHERE day BETWEEN :first AND :last AND counter IN (SELECT value FROM json_each(:counters)){more}
GROUP BY caller, server, tool, counter
"""
_OF_SERVERS = " AND server IN (SELECT value FROM json_each(:servers))"
_OF_TOOL = " AND tool = :tool"
_UNUSABLE = "the history of savings cannot be used: {}"


class SqliteUsage(Usage):
    """Usage in one file."""

    def __init__(self, path: Path, keep_days: int) -> None:
        self._keep_days = keep_days
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._forgot_on: date | None = None
        self._counters: dict[date, int] = {}
        """How many the days have of which this process has written rows today."""
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
            for day, keys in groupby(sorted(rows), key=attrgetter("day")):
                of_day = {key: rows[key] for key in keys}
                known = {key for key in of_day if db.execute(_IS_KNOWN, _columns(key)).fetchone()}
                kept = bounded(of_day, known, self._counters_of(day, db))
                db.executemany(
                    _ADD, [(*_columns(key), *counter) for key, counts in kept.items() for counter in counts.items()]
                )
                self._counters[day] += sum(len(counts) for key, counts in kept.items() if key not in known)

    @override
    def raise_to(self, rows: Rows) -> int:
        raised = 0
        with self._transaction() as db:
            for key, counts in rows.items():
                before = db.total_changes
                db.executemany(_RAISE, [(*_columns(key), *counter) for counter in counts.items()])
                raised += db.total_changes > before
            self._counters = {}  # counted again
        return raised

    @override
    def rows(self, first: date, last: date) -> Rows:
        query = "SELECT * FROM counters WHERE day BETWEEN :first AND :last ORDER BY day, caller, server, tool"
        by_row = groupby(self._fetched(query, first, last), key=itemgetter(0, 1, 2, 3))
        return {
            RowKey(date.fromisoformat(day), caller, server, tool): {each[4]: each[5] for each in of_row}
            for (day, caller, server, tool), of_row in by_row
        }

    @override
    def sums(
        self,
        first: date,
        last: date,
        counters: Collection[str],
        servers: Collection[str] | None = None,
        tool: str | None = None,
    ) -> Mapping[Use, Counts]:
        query = _SUMS.format(more=(_OF_SERVERS if servers is not None else "") + (_OF_TOOL if tool is not None else ""))
        asked = {"counters": json.dumps(list(counters)), "servers": json.dumps(list(servers or ())), "tool": tool}
        sums: dict[Use, dict[str, int]] = {}
        for caller, server, name, counter, amount in self._fetched(query, first, last, **asked):
            sums.setdefault((caller, server, name), {})[counter] = amount
        return sums

    @override
    def put_size(self, day: date, size: CatalogueSize) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO catalogue_sizes VALUES (?, ?, ?, ?)", (day.isoformat(), *size))

    @override
    def sizes(self, first: date, last: date) -> Mapping[date, CatalogueSize]:
        query = "SELECT * FROM catalogue_sizes WHERE day BETWEEN :first AND :last"
        return {date.fromisoformat(day): CatalogueSize(*size) for day, *size in self._fetched(query, first, last)}

    @override
    def close(self) -> None:
        with self._lock, self._reading:
            self._db.close()
            self._reader.close()

    def _counters_of(self, day: date, db: sqlite3.Connection) -> int:
        """Return how many counters a day has; they are counted once, since other processes rarely add any."""
        if day not in self._counters:
            (count,) = db.execute("SELECT count(*) FROM counters WHERE day = ?", (day.isoformat(),)).fetchone()
            self._counters[day] = count
        return self._counters[day]

    def _fetched(self, query: str, first: date, last: date, **values: str | None) -> list[tuple[Any, ...]]:
        """Return the rows of a query of these days, over a connection that waits for no write."""
        try:
            with self._reading:
                days = {"first": first.isoformat(), "last": last.isoformat()}
                return self._reader.execute(query, days | values).fetchall()
        except sqlite3.Error as error:
            raise HistoryUnavailable(_UNUSABLE.format(error)) from error

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        """Yield the connection for writes; the first transaction of a day also forgets the days beyond `keep_days`."""
        try:
            with self._lock, self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                if self._forgot_on != (now := today()):
                    oldest = (now - timedelta(days=self._keep_days - 1)).isoformat()
                    self._db.execute("DELETE FROM counters WHERE day < ?", (oldest,))
                    self._db.execute("DELETE FROM catalogue_sizes WHERE day < ?", (oldest,))
                    self._forgot_on, self._counters = now, {}
        except sqlite3.Error as error:
            raise HistoryUnavailable(_UNUSABLE.format(error)) from error


def _connected(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=5, check_same_thread=False, isolation_level=None)


def _columns(key: RowKey) -> tuple[str, str, str, str]:
    return key.day.isoformat(), key.caller, key.server, key.tool
