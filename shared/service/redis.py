"""Redis clients with short timeouts, and their errors as errors of ours."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

import redis
from redis.exceptions import RedisError

from shared.errors import ToolscaleError


def connect(url: str, *, decode: bool = True, timeout_s: float = 5.0, connect_timeout_s: float = 3.0) -> redis.Redis:
    """Return a client that raises an error within seconds when Redis is silent; it connects on first use."""
    return redis.Redis.from_url(
        url,
        decode_responses=decode,
        socket_timeout=timeout_s,
        socket_connect_timeout=connect_timeout_s,
        health_check_interval=10,
    )


@contextmanager
def redis_errors(unavailable: Callable[[str], ToolscaleError], where: str = "Redis at REDIS_URL") -> Generator[None]:
    """Raise `unavailable` with a message in place of each error of the Redis client."""
    try:
        yield
    except RedisError as error:
        raise unavailable(f"{where}: {error}") from error
