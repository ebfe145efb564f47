"""The store of cursor states in Redis, shared by all replicas of the query service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from query.cursors.sealing import EXPIRED
from query.cursors.store import CursorStore, check_size, new_key
from shared.errors import CursorInvalid, CursorsUnavailable
from shared.service.redis import redis_errors

if TYPE_CHECKING:
    import redis

# INDEX: `key:size` scored by expiry, in microseconds, so that no two are equal. SIZE: the sum of the sizes.
# One further value per key. A size has the bytes of the value and OVERHEAD_BYTES.
INDEX = "toolscale:cursors"
SIZE = "toolscale:cursors:size"
OVERHEAD_BYTES = 320
"""Of an entry in Redis, for its names, its expiry and its place in the index."""

# Redis must not evict, since it also stores the intents: this script enforces the bound, for all replicas.
_PUT = """
local function drop(member)
    local key, size = string.match(member, '^(%x+):(%d+)$')
    redis.call('ZREM', KEYS[1], member)
    redis.call('DEL', KEYS[1] .. ':' .. key)
    redis.call('DECRBY', KEYS[2], size)
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do drop(member) end
local key, kept, ttl, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if redis.call('EXISTS', KEYS[1] .. ':' .. key) == 1 then return end
local added = #kept + ARGV[5]
local size = redis.call('INCRBY', KEYS[2], added)
while size > most and redis.call('ZCARD', KEYS[1]) > 0 do
    drop(redis.call('ZRANGE', KEYS[1], 0, 0)[1])
    size = tonumber(redis.call('GET', KEYS[2]))
end
redis.call('SET', KEYS[1] .. ':' .. key, kept, 'PX', ttl)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ttl * 1000), key .. ':' .. added)
"""

_GET = """
local kept = redis.call('GET', KEYS[1] .. ':' .. ARGV[1])
if kept then
    local time = redis.call('TIME')
    local expiry = time[1] * 1000000 + time[2] + ARGV[2] * 1000
    redis.call('PEXPIRE', KEYS[1] .. ':' .. ARGV[1], ARGV[2])
    redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', expiry), ARGV[1] .. ':' .. (#kept + ARGV[3]))
end
return kept
"""

_TAKE = """
local kept = redis.call('GET', KEYS[1] .. ':' .. ARGV[1])
if kept then
    local size = #kept + ARGV[2]
    redis.call('DEL', KEYS[1] .. ':' .. ARGV[1])
    if redis.call('ZREM', KEYS[1], ARGV[1] .. ':' .. size) == 1 then redis.call('DECRBY', KEYS[2], size) end
end
return kept
"""


class RedisStore(CursorStore):
    """A CursorStore shared by any number of replicas."""

    def __init__(self, client: redis.Redis, ttl_s: float, max_bytes: int, overhead_bytes: int = OVERHEAD_BYTES) -> None:
        """Use a client that does not decode responses; each entry counts for its bytes and `overhead_bytes`."""
        self._ttl_ms = int(ttl_s * 1000)
        self._max_bytes = max_bytes
        self._overhead_bytes = overhead_bytes
        self._put = client.register_script(_PUT)
        self._get = client.register_script(_GET)
        self._take = client.register_script(_TAKE)

    @override
    def put(self, kept: bytes, key: bytes | None = None) -> bytes:
        check_size(kept, self._max_bytes - self._overhead_bytes)
        key = key or new_key()
        with redis_errors(CursorsUnavailable):
            self._put(keys=[INDEX, SIZE], args=[key.hex(), kept, self._ttl_ms, self._max_bytes, self._overhead_bytes])
        return key

    @override
    def get(self, key: bytes) -> bytes:
        with redis_errors(CursorsUnavailable):
            kept = self._get(keys=[INDEX], args=[key.hex(), self._ttl_ms, self._overhead_bytes])
        return _found(kept)

    @override
    def take(self, key: bytes) -> bytes:
        with redis_errors(CursorsUnavailable):
            kept = self._take(keys=[INDEX, SIZE], args=[key.hex(), self._overhead_bytes])
        return _found(kept)


def _found(kept: object) -> bytes:
    if not isinstance(kept, bytes):
        raise CursorInvalid(EXPIRED)
    return kept
