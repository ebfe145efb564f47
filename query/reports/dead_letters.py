"""The number of dead letters, which the workers keep in Redis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from shared.errors import HistoryUnavailable
from shared.service.redis import DEAD_LETTERS, connect, redis_errors

if TYPE_CHECKING:
    import redis

    from shared.settings import Settings

TIMEOUT_S = 1.0


def dead_letter_counter(settings: Settings) -> Callable[[], int | None]:
    """Return a function that counts the dead letters, or returns None without REDIS_URL or an answer of Redis."""
    if settings.redis_url is None:
        return lambda: None
    return partial(_count, connect(settings.redis_url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S))


def _count(client: redis.Redis) -> int | None:
    try:
        with redis_errors(HistoryUnavailable):
            return int(client.llen(DEAD_LETTERS))
    except HistoryUnavailable:
        return None
