"""Days in UTC, and the periods of a report: `7d` is today and the six days before, `2026-11-21` that day."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

MAX_DAYS = 400


def today() -> date:
    """Return the current day in UTC."""
    return datetime.now(UTC).date()


def days_between(first: date, last: date) -> list[date]:
    """Return the days from the first to the last, both included."""
    return [first + timedelta(days=count) for count in range((last - first).days + 1)]


def start_s(day: date) -> float:
    """Return the beginning of a day, in seconds since the epoch."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


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
