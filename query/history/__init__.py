"""History of savings, calls and the catalogue's size by day: recorded in the background, read by the report.

Savings and sizes of the last days are also kept by hour, for the charts of a new service.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from query.history.periods import DAY, HOUR
from query.history.recorder import UsageRecorder
from query.history.store import HOURS_KEEP_DAYS, MAX_BYTES_A_DAY, MAX_BYTES_AN_HOUR

if TYPE_CHECKING:
    from query.history.periods import Unit
    from query.history.store import SavingsHistory
    from shared.settings import Settings

FILE = "savings.sqlite3"
HOURS_FILE = "savings-hours.sqlite3"


def open_history(settings: Settings) -> SavingsHistory:
    """Open the history: in Redis where REDIS_URL is set, else a file in the data directory.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    return _opened(settings, FILE, settings.savings_keep_days, MAX_BYTES_A_DAY, DAY)


def open_hours(settings: Settings) -> SavingsHistory:
    """Open the history of the last hours, beside that of days.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    return _opened(settings, HOURS_FILE, HOURS_KEEP_DAYS, MAX_BYTES_AN_HOUR, HOUR)


def _opened(settings: Settings, file: str, keep_days: int, max_bytes: int, unit: Unit) -> SavingsHistory:
    if settings.redis_url:
        from query.history.redis_store import TIMEOUT_S, RedisHistory  # noqa: PLC0415
        from shared.service.redis import connect  # noqa: PLC0415

        client = connect(settings.redis_url, timeout_s=TIMEOUT_S, connect_timeout_s=TIMEOUT_S)
        return RedisHistory(client, keep_days, max_bytes, unit)
    from query.history.sqlite_store import SqliteHistory  # noqa: PLC0415

    return SqliteHistory(settings.data_dir / file, keep_days, max_bytes, unit=unit)


@contextmanager
def recording(settings: Settings) -> Generator[UsageRecorder]:
    """Record answers and calls until the block ends; queued events are written first.

    Raises:
        HistoryUnavailable: the file cannot be opened.
    """
    with (
        closing(open_history(settings)) as history,
        closing(open_hours(settings)) as hours,
        closing(UsageRecorder(history, hours=hours)) as recorder,
    ):
        yield recorder
