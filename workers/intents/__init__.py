"""Durable intents: the desired state of every server, stored before any message is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.intents.store import IntentStore
from workers.intents.transitions import RetryPolicy

if TYPE_CHECKING:
    from shared.settings import Settings

# A server that reports changes all the time costs at most six reconciliations a minute.
MIN_INTERVAL_S = 10.0


def open_intents(settings: Settings) -> IntentStore:
    """Open the intent store: Redis if REDIS_URL is set, else a file in the data directory."""
    policy = RetryPolicy(
        settings.redeliver_after_s,
        settings.retry_max_s,
        resync_s=settings.resync_interval_s,
        stdio_resync_s=settings.stdio_resync_interval_s,
        min_interval_s=MIN_INTERVAL_S,
    )
    if settings.redis_url:
        from shared.service.redis import connect  # noqa: PLC0415
        from workers.intents.redis_store import RedisIntents  # noqa: PLC0415

        return RedisIntents(connect(settings.redis_url), policy, settings.lease_s)
    from workers.intents.sqlite_store import SqliteIntents  # noqa: PLC0415

    return SqliteIntents(settings.data_dir / "intents.sqlite3", policy)
