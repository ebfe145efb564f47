"""History of savings, calls and the catalogue's size by day: recorded in the background, read by the report."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from query.history.recorder import UsageRecorder

if TYPE_CHECKING:
    from query.history.store import SavingsHistory
    from shared.settings import Settings

FILE = "savings.sqlite3"


def open_history(settings: Settings) -> SavingsHistory:
    """Open the history: in Redis where REDIS_URL is set, else a file in the data directory.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    if settings.redis_url:
        from query.history.redis_store import TIMEOUT_S, RedisHistory  # noqa: PLC0415
        from shared.service.redis import connect  # noqa: PLC0415

        client = connect(settings.redis_url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S)
        return RedisHistory(client, settings.savings_keep_days)
    from query.history.sqlite_store import SqliteHistory  # noqa: PLC0415

    return SqliteHistory(settings.data_dir / FILE, settings.savings_keep_days)


@contextmanager
def recording(settings: Settings) -> Generator[UsageRecorder]:
    """Record answers and calls until the block ends; queued events are written first.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    with closing(open_history(settings)) as history, closing(UsageRecorder(history)) as recorder:
        yield recorder
