"""The definitions of servers in Redis: a document for each server, replaced by compare-and-set."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shared.errors import IntentsUnavailable
from shared.service.redis import redis_errors
from workers.intents.definitions import Definitions, DefinitionsChange, readable_definitions

if TYPE_CHECKING:
    import redis

_redis_errors = partial(redis_errors, IntentsUnavailable)

# Replace a document unless it changed since the read ('': absent).
_REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RedisDefinitions:
    """Documents under `toolscale:definitions:<server>`."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._replace = client.register_script(_REPLACE)

    def read(self, server_id: str) -> Definitions | None:
        """Return the document of a server, or None when there is no valid one."""
        return readable_definitions(server_id, self._stored(server_id))

    def update(self, server_id: str, change: DefinitionsChange) -> tuple[Definitions | None, Definitions]:
        """Replace the document by the result of `change`, again after a write of another process."""
        while True:
            stored = self._stored(server_id)
            before = readable_definitions(server_id, stored)
            after = change(before)
            if after == before or self._is_replaced(server_id, stored, after):
                return before, after

    def _stored(self, server_id: str) -> str | None:
        with _redis_errors():
            stored = self._redis.get(_key(server_id))
        return stored if isinstance(stored, str) else None

    def _is_replaced(self, server_id: str, stored: str | None, after: Definitions) -> bool:
        with _redis_errors():
            return bool(self._replace(keys=[_key(server_id)], args=[stored or "", after.as_json()]))


def _key(server_id: str) -> str:
    return f"toolscale:definitions:{server_id}"
