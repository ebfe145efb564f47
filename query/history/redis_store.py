"""The history in Redis, shared by replicas: two hashes and a size per day; a batch takes one round trip per day."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import date
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from query.history.periods import days_between, start_s
from query.history.store import (
    COUNTER_OVERHEAD_BYTES,
    MAX_BYTES_A_DAY,
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
from shared.service.redis import redis_errors

if TYPE_CHECKING:
    import redis

PREFIX = "toolscale:savings:"
BYTES_PREFIX = "toolscale:savings-bytes:"
SIZES_PREFIX = "toolscale:sizes:"
TIMEOUT_S = 2.0
_DAY_S = 86_400
# Fields that a step of a scan visits; Redis answers no other client meanwhile.
_SCANNED = 1_000

_redis_errors = partial(redis_errors, HistoryUnavailable, "the history of savings cannot be used")

# A field is the JSON of a row, then the name of its counter. Redis must not evict: this script enforces the bound.
_ADD = """
local at, bytes = 4, tonumber(redis.call('GET', KEYS[2]) or 0)
while at <= #ARGV do
    local row, others, counters = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    local known = redis.call('HEXISTS', KEYS[1], row .. 'answers') == 1
    if not known and bytes >= tonumber(ARGV[1]) then row = others end
    at = at + 3
    for _ = 1, counters do
        local fields = redis.call('HLEN', KEYS[1])
        redis.call('HINCRBY', KEYS[1], row .. ARGV[at], ARGV[at + 1])
        if redis.call('HLEN', KEYS[1]) > fields then bytes = bytes + #row + #ARGV[at] + ARGV[3] end
        at = at + 2
    end
end
redis.call('SET', KEYS[2], bytes)
for _, key in ipairs(KEYS) do redis.call('EXPIREAT', key, ARGV[2]) end
"""


class RedisHistory(SavingsHistory):
    """A SavingsHistory for any number of replicas."""

    def __init__(self, client: redis.Redis, keep_days: int, max_bytes: int = MAX_BYTES_A_DAY) -> None:
        """Use a client that decodes responses."""
        self._redis = client
        self._keep_days = keep_days
        self._max_bytes = max_bytes
        self._script = client.register_script(_ADD)

    @override
    def add(self, rows: Rows) -> None:
        with _redis_errors():
            for day, keys in groupby(sorted(rows), key=lambda key: key.day):
                added: list[Any] = [self._max_bytes, self._expires_at(day), COUNTER_OVERHEAD_BYTES]
                for key in keys:
                    counters = [part for counter in rows[key].items() for part in counter]
                    added += [_row(key), _row(key.overflow), len(rows[key]), *counters]
                self._script(keys=[PREFIX + day.isoformat(), BYTES_PREFIX + day.isoformat()], args=added)

    @override
    def rows(self, first: date, last: date) -> Rows:
        rows: dict[RowKey, dict[str, int]] = {}
        for day, fields in self._hashes(PREFIX, first, last):
            for field, amount in fields.items():
                row, _, counter = field.rpartition("]")
                rows.setdefault(RowKey(day, *json.loads(row + "]")), {})[counter] = int(amount)
        return rows

    @override
    def sums(self, first: date, last: date, counters: Collection[str]) -> Sums:
        sums: dict[tuple[str, str, str], Counter[str]] = {}
        pattern = f"*]{next(iter(counters))}" if len(counters) == 1 else None
        with _redis_errors():
            for day in days_between(first, last):
                key = PREFIX + day.isoformat()
                # a dictionary, since a scan may return a field twice
                fields = dict[str, str](cast("Any", self._redis.hscan_iter(key, pattern, _SCANNED)))
                for field, amount in fields.items():
                    row, _, counter = field.rpartition("]")
                    if counter in counters:
                        caller, server, tool = json.loads(row + "]")
                        sums.setdefault((caller, server, tool), Counter())[counter] += int(amount)
        return sums

    @override
    def store_sizes(self, day: date, sizes: Mapping[str, ServerSize]) -> None:
        if not sizes:
            return
        key = SIZES_PREFIX + day.isoformat()
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hset(key, mapping={server: f"{size.tools} {size.tokens}" for server, size in sizes.items()})
            pipeline.expireat(key, self._expires_at(day))
            pipeline.execute()

    @override
    def sizes(self, first: date, last: date, server: str | None = None) -> Sizes:
        hashes = self._hashes(SIZES_PREFIX, first, last, server)
        return {
            day: {name: ServerSize(*map(int, size.split())) for name, size in fields.items()}
            for day, fields in hashes
            if fields
        }

    @override
    def total_sizes(self, first: date, last: date, servers: Collection[str] | None = None) -> TotalSizes:
        return {
            day: _total(size for server, size in fields.items() if servers is None or server in servers)
            for day, fields in self._hashes(SIZES_PREFIX, first, last)
            if fields
        }

    @override
    def close(self) -> None:
        self._redis.close()

    def _expires_at(self, day: date) -> int:
        """Return the end of the last day that shows this one, in seconds since the epoch."""
        return int(start_s(day)) + self._keep_days * _DAY_S

    def _hashes(
        self, prefix: str, first: date, last: date, field: str | None = None
    ) -> list[tuple[date, dict[str, str]]]:
        """Return each day's hash with this prefix, or only this field of it, in one round trip."""
        days = days_between(first, last)
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
            for day in days:
                key = prefix + day.isoformat()
                pipeline.hgetall(key) if field is None else pipeline.hget(key, field)
            read = pipeline.execute()
        if field is not None:
            read = [{} if value is None else {field: value} for value in read]
        return list(zip(days, read, strict=True))


def _total(sizes: Iterable[str]) -> TotalSize:
    """Return the sum of these fields, which have the tools and the tokens of a server."""
    servers = all_tools = all_tokens = 0
    for size in sizes:
        tools, tokens = map(int, size.split())
        servers, all_tools, all_tokens = servers + (tools > 0), all_tools + tools, all_tokens + tokens
    return TotalSize(servers, all_tools, all_tokens)


def _row(key: RowKey) -> str:
    return json.dumps([key.caller, key.server, key.tool], separators=(",", ":"))
