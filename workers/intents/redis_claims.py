"""Claims on keys in Redis: many at once, renewed together, and free again soon after their holder died."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from shared.errors import IntentsUnavailable

if TYPE_CHECKING:
    import redis

# Only the holder's own claims: one that it lost may be another's by now.
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
    """Who works on what; a claim that is not renewed expires after `expiry_s` seconds."""

    def __init__(self, client: redis.Redis, expiry_s: float) -> None:
        self._redis = client
        self._expiry_ms = int(expiry_s * 1000)
        self._renew = client.register_script(_RENEW)
        self._release = client.register_script(_RELEASE)

    @contextmanager
    def held(self, keys: Collection[str]) -> Generator[frozenset[str]]:
        """Hold those of these keys that nobody holds until the block ends.

        Raises:
            IntentsUnavailable: Redis does not answer. Once they are held, such trouble lets them expire.
        """
        holder = uuid.uuid4().hex
        claimed = self._take(list(keys), holder)
        if not claimed:
            yield claimed
            return
        with self._renewed(claimed, holder):
            yield claimed

    def _take(self, keys: list[str], holder: str) -> frozenset[str]:
        try:
            with self._redis.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.set(_name(key), holder, nx=True, px=self._expiry_ms)
                taken = pipe.execute()
        except RedisError as error:
            raise IntentsUnavailable(f"Redis at REDIS_URL: {error}") from error
        return frozenset(key for key, was_free in zip(keys, taken, strict=True) if was_free)

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
            self._let_go(names, holder)

    def _renew_until(self, ended: threading.Event, names: list[str], holder: str) -> None:
        while not ended.wait(self._expiry_ms / 3000):
            try:
                self._renew(keys=names, args=[holder, self._expiry_ms])
            except RedisError:
                continue  # Redis may be back before the claims expire

    def _let_go(self, names: list[str], holder: str) -> None:
        try:
            self._release(keys=names, args=[holder])
        except RedisError:
            return  # they expire by themselves


def _name(key: str) -> str:
    return f"toolscale:claim:{key}"
