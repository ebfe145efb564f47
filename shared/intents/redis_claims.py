"""Claims on keys in Redis: taken together, renewed together, and expired soon after their holder died."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from shared.errors import IntentsUnavailable
from shared.service.redis import redis_errors
from shared.service.repeated import repeated

if TYPE_CHECKING:
    import redis

# Both scripts skip a claim that expired and that another holder may have taken.
_RENEW = """
for _, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[1] then redis.call('PEXPIRE', key, ARGV[2]) end
end
"""
_RELEASE = """
for _, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
"""


class RedisClaims:
    """Exclusive claims on keys; a claim that is not renewed expires after `expiry_s` seconds."""

    def __init__(self, client: redis.Redis, expiry_s: float) -> None:
        self._redis = client
        self._expiry_ms = int(expiry_s * 1000)
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)

    @contextmanager
    def held(self, keys: Collection[str]) -> Generator[frozenset[str]]:
        """Claim the free ones of these keys, yield them, and release them when the block ends.

        Raises:
            IntentsUnavailable: Redis does not answer the claim. A later failure lets the claims expire.
        """
        holder = uuid.uuid4().hex
        claimed = self._claim(list(keys), holder)
        if not claimed:
            yield claimed
            return
        with self._renewed(claimed, holder):
            yield claimed

    def _claim(self, keys: list[str], holder: str) -> frozenset[str]:
        with redis_errors(IntentsUnavailable), self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.set(_name(key), holder, nx=True, px=self._expiry_ms)
            claimed = pipe.execute()
        return frozenset(key for key, was_free in zip(keys, claimed, strict=True) if was_free)

    @contextmanager
    def _renewed(self, keys: frozenset[str], holder: str) -> Generator[None]:
        names = [_name(key) for key in keys]
        try:
            with repeated(partial(self._renew_all, names, holder), self._expiry_ms / 3000, "claims"):
                yield
        finally:
            self._release_all(names, holder)

    def _renew_all(self, names: list[str], holder: str) -> None:
        with suppress(RedisError):  # Redis may answer again before the claims expire
            self._renew(keys=names, args=[holder, self._expiry_ms])

    def _release_all(self, names: list[str], holder: str) -> None:
        with suppress(RedisError):  # the claims expire
            self._release(keys=names, args=[holder])


def _name(key: str) -> str:
    return f"toolscale:claim:{key}"
