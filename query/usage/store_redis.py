"""Usage in Redis, shared by replicas: a hash of counters and a size of the catalogue for each day.

A counter's field is the JSON of its row's names, then its own name. A batch takes two round trips.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from query.usage.usage import CatalogueSize, Counts, RowKey, Rows, Usage, Use, bounded, days_between
from shared.errors import HistoryUnavailable
from shared.service.redis import redis_errors

if TYPE_CHECKING:
    import redis

PREFIX = "toolscale:savings:"
SIZE_PREFIX = "toolscale:catalogue-size:"
TIMEOUT_S = 2.0
_DAY_S = 86_400
# Fields that a step of a scan visits; Redis answers no other client meanwhile.
_SCANNED = 1_000

_log = structlog.get_logger()
_NAMES = TypeAdapter(tuple[str, str, str])
_SIZE = TypeAdapter(tuple[int, int, int])

_redis_errors = partial(redis_errors, HistoryUnavailable, "the history of savings cannot be used")


class RedisUsage(Usage):
    """Usage for any number of replicas, which may together exceed the limits of a day by a batch each."""

    def __init__(self, client: redis.Redis, keep_days: int) -> None:
        """Use a client that decodes responses."""
        self._redis = client
        self._keep_days = keep_days

    @override
    def add(self, rows: Rows) -> None:
        days = {day: list(keys) for day, keys in groupby(sorted(rows), key=attrgetter("day"))}
        with _redis_errors():
            with self._redis.pipeline(transaction=False) as pipeline:
                for day, keys in days.items():
                    pipeline.hlen(_key(day))
                    pipeline.hmget(_key(day), [f"{key.names}answers" for key in keys])
                read = iter(pipeline.execute())
            # one transaction: after an error, no part of the batch is stored
            with self._redis.pipeline() as pipeline:
                for day, keys in days.items():
                    fields, present = next(read), next(read)
                    known = {key for key, answers in zip(keys, present, strict=True) if answers is not None}
                    for key, counts in bounded({key: rows[key] for key in keys}, known, fields).items():
                        for counter, amount in counts.items():
                            pipeline.hincrby(_key(day), key.names + counter, amount)
                    pipeline.expireat(_key(day), self._expires_at(day))
                pipeline.execute()

    @override
    def raise_to(self, rows: Rows) -> int:
        present: Rows = self.rows(min(key.day for key in rows), max(key.day for key in rows)) if rows else {}
        raised = 0
        with _redis_errors(), self._redis.pipeline() as pipeline:
            for key, counts in rows.items():
                of_row = present.get(key, {})
                missing = {name: amount - of_row.get(name, 0) for name, amount in counts.items()}
                raised += any(amount > 0 for amount in missing.values())
                for name, amount in missing.items():
                    if amount > 0 or name not in of_row:
                        pipeline.hincrby(_key(key.day), key.names + name, amount)
            for day in {key.day for key in rows}:
                pipeline.expireat(_key(day), self._expires_at(day))
            pipeline.execute()
        return raised

    @override
    def rows(self, first: date, last: date) -> Rows:
        rows: dict[RowKey, dict[str, int]] = {}
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
            days = days_between(first, last)
            for day in days:
                pipeline.hgetall(_key(day))
            read = pipeline.execute()
        for day, fields in zip(days, read, strict=True):
            for (names, counter), amount in _readable(fields):
                rows.setdefault(RowKey(day, *names), {})[counter] = amount
        return rows

    @override
    def sums(
        self,
        first: date,
        last: date,
        counters: Collection[str],
        servers: Collection[str] | None = None,
        tool: str | None = None,
    ) -> Mapping[Use, Counts]:
        of_server = _pattern(next(iter(servers))) if servers is not None and len(servers) == 1 else "*"
        of_tool = "*" if tool is None else _pattern(tool)
        counter = next(iter(counters)) if len(counters) == 1 else "*"
        sums: dict[Use, Counter[str]] = {}
        for fields in self._scanned(days_between(first, last), f"*,{of_server},{of_tool}]{counter}"):
            for ((caller, of, used), name), amount in _readable(fields):
                # the pattern is that of one server, and a name may hold what looks like another one
                if name in counters and (servers is None or of in servers) and tool in (None, used):
                    sums.setdefault((caller, of, used), Counter())[name] += amount
        return sums

    @override
    def put_size(self, day: date, size: CatalogueSize) -> None:
        with _redis_errors():
            self._redis.set(SIZE_PREFIX + day.isoformat(), json.dumps(size), exat=self._expires_at(day))

    @override
    def sizes(self, first: date, last: date) -> Mapping[date, CatalogueSize]:
        days = days_between(first, last)
        with _redis_errors():
            read: list[Any] = self._redis.mget([SIZE_PREFIX + day.isoformat() for day in days])
        sizes: dict[date, CatalogueSize] = {}
        for day, size in zip(days, read, strict=True):
            try:
                sizes |= {day: CatalogueSize(*_SIZE.validate_json(size))} if size else {}
            except ValidationError:
                _log.error("record_unreadable", kind="size", record=SIZE_PREFIX + day.isoformat())
        return sizes

    @override
    def close(self) -> None:
        self._redis.close()

    def _expires_at(self, day: date) -> int:
        """Return the end of the last day that shows this one, in seconds since the epoch."""
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return int(start.timestamp()) + self._keep_days * _DAY_S

    def _scanned(self, days: Collection[date], pattern: str) -> Collection[Mapping[str, str]]:
        """Return the fields of each day that match, in as many round trips as the largest day has steps."""
        found: dict[date, dict[str, str]] = {day: {} for day in days}
        cursors = dict.fromkeys(days, 0)
        while cursors:
            with _redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
                for day, cursor in cursors.items():
                    pipeline.hscan(_key(day), cursor, pattern, _SCANNED)
                steps: list[Any] = pipeline.execute()
            following: dict[date, int] = {}
            for day, (cursor, fields) in zip(cursors, steps, strict=True):
                found[day] |= fields  # a scan may return a field twice
                if cursor:
                    following[day] = cursor
            cursors = following
        return found.values()


def _readable(fields: Mapping[str, str]) -> Iterator[tuple[tuple[tuple[str, str, str], str], int]]:
    """Yield the names, the counter and the amount of each field; one that is none of ours is logged."""
    for field, amount in fields.items():
        names, end, counter = field.rpartition("]")
        try:
            yield (_NAMES.validate_json(names + end), counter), int(amount)
        except ValueError:
            _log.error("record_unreadable", kind="usage", record=field)


def _key(day: date) -> str:
    return PREFIX + day.isoformat()


def _pattern(name: str) -> str:
    """Return the pattern of a name as JSON in a field."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", json.dumps(name))
