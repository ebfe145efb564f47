"""Days and hours in UTC, and the periods of a report: `7d` is today and the six days before, `2026-11-21` that day."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

MAX_DAYS = 400


@dataclass(frozen=True, slots=True)
class Unit:
    """The span by which a history counts: of a day, the key is its `date`; of an hour, the `datetime` of its start."""

    name: str
    length: timedelta
    characters: int
    parse: Callable[[str], date]
    """Returns the key of a text."""

    def text(self, key: date) -> str:
        """Return a key as text; the order of texts is that of keys."""
        return key.isoformat()[: self.characters]

    def between(self, first: date, last: date) -> list[date]:
        """Return the keys from the first to the last, both included."""
        return [first + self.length * count for count in range((last - first) // self.length + 1)]


DAY = Unit("day", timedelta(days=1), 10, date.fromisoformat)
HOUR = Unit("hour", timedelta(hours=1), 13, lambda text: datetime.fromisoformat(f"{text}:00:00+00:00"))


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def this_hour() -> datetime:
    """Return the start of the current hour in UTC."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def day_of(key: date) -> date:
    """Return the day of a day or of an hour."""
    return date(key.year, key.month, key.day)


def start_s(key: date) -> float:
    """Return the beginning of a day or an hour, in seconds since the epoch."""
    return datetime(*key.timetuple()[:4], tzinfo=UTC).timestamp()


def days_of(period: str, now: date) -> tuple[date, date]:
    """Return the first and the last day of a period, both included.

    Raises:
        ValueError: the period is neither a number of days, 1 to MAX_DAYS, nor a date.
    """
    if period == "today":
        return now, now
    if match := re.fullmatch(r"([0-9]{1,3})d", period):
        days = int(match[1])
        if 1 <= days <= MAX_DAYS:
            return now - timedelta(days=days - 1), now
    elif re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", period):
        day = date.fromisoformat(period)
        return day, day
    raise ValueError(f"expected today, 1d to {MAX_DAYS}d or a date such as 2026-11-21, got {period!r}")
