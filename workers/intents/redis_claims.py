"""Claims on keys in Redis: taken together, renewed together, and expired soon after their holder died."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from shared.errors import IntentsUnavailable
from shared.service.redis import redis_errors

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
        ended = threading.Event()
        renewer = threading.Thread(target=self._renew_until, args=(ended, names, holder), name="claims", daemon=True)
        renewer.start()
        try:
            yield
        finally:
            ended.set()
            renewer.join()
            self._release_all(names, holder)

    def _renew_until(self, ended: threading.Event, names: list[str], holder: str) -> None:
        while not ended.wait(self._expiry_ms / 3000):
            try:
                self._renew(keys=names, args=[holder, self._expiry_ms])
            except RedisError:
                continue  # Redis may answer again before the claims expire

    def _release_all(self, names: list[str], holder: str) -> None:
        try:
            self._release(keys=names, args=[holder])
        except RedisError:
            return  # the claims expire


def _name(key: str) -> str:
    return f"toolscale:claim:{key}"
