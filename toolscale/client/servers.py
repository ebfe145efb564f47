"""`toolscale ls`: the state of each server from its intent, and the token cost of its tools."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from shared.settings import Settings
from shared.text.display import printable
from toolscale.client.costs import ServerCost
from toolscale.console import ago, percent, thousands
from workers.intents import open_intents
from workers.intents.store import Intent

Row = tuple[str, Intent | None, ServerCost | None]


def servers(settings: Settings) -> list[Intent]:
    """Return the intents of all announced servers, by id.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return list(intents.intents())


def rows(intents: Collection[Intent], costs: Mapping[str, ServerCost]) -> list[Row]:
    """Return every server of either collection, ordered by id."""
    known = {intent.server_id: intent for intent in intents}
    return [(server, known.get(server), costs.get(server)) for server in sorted({*known, *costs})]


def state(intent: Intent) -> str:
    """Return the state of this server in a word or two."""
    if intent.status == "stopped":
        return "stopped" if not intent.is_lagging else "stopping"
    if intent.due_at is None and intent.last_error:
        return "given up"
    if intent.parked:
        return "parked"
    if intent.failures:
        return f"failing ({intent.failures})"
    return "waiting" if intent.is_lagging else "listed"


def as_object(row: Row) -> dict[str, Any]:
    """Return a server as JSON; unknown values are null."""
    server, intent, cost = row
    costs = {"tools": len(cost.tools), "tokens": cost.tokens, "share": cost.part} if cost else {}
    return {"server_id": server, "tools": None, "tokens": None, "share": None} | costs | _announced(intent)


def _announced(intent: Intent | None) -> dict[str, Any]:
    if intent is None:
        return {}
    return {
        "state": state(intent),
        "transport": intent.announcement.transport,
        "url": intent.announcement.url,
        "groups": sorted(intent.announcement.groups),
        "source": intent.source,
        "listed_at": _iso(intent.listed_at),
        "next_reconcile_at": _iso(intent.due_at),
        "last_error": intent.last_error,
    }


_COLUMNS = ("server", "state", "tools", "tokens", "share", "listed", "reconcile", "problem")
_FIGURES = ("tools", "tokens", "share")
# Columns that a narrow terminal omits.
_DISPENSABLE = ("share", "reconcile")
NARROW = 80


def table(found: Collection[Row], width: int) -> Table:
    """Return the servers as a table of at most this width in characters; ids are never cut."""
    cells: list[dict[str, str]] = [dict(zip(_COLUMNS, _cells(*row), strict=True)) for row in found]
    left_out: set[str] = set(_DISPENSABLE) if width < NARROW else set()
    if not any(row["problem"] for row in cells):
        left_out.add("problem")
    columns = [column for column in _COLUMNS if column not in left_out]
    shown = Table(box=None, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in _FIGURES else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(row[column] for column in columns))
    return shown


def _cells(server: str, intent: Intent | None, cost: ServerCost | None) -> list[str]:
    costs = [thousands(len(cost.tools)), thousands(cost.tokens), percent(cost.part)] if cost else ["", "", ""]
    if intent is None:
        return [printable(server), "", *costs, "", "", ""]
    times = [ago(intent.listed_at, time.time()), _wait(intent)]
    return [
        printable(server),
        state(intent),
        *costs,
        *times,
        printable((intent.last_error or "").removeprefix(f"{server}: ")),
    ]


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _wait(intent: Intent) -> str:
    if intent.due_at is None:
        return "when announced"
    return f"in {max(0, round(intent.due_at - time.time()))} s"


def migration(settings: Settings) -> str | None:
    """Return the progress of a change of the embedding model as a sentence; None if there is no change.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        progress, now = intents.migration(), intents.now()
    if progress is None:
        return None
    how_far = f"{progress.done} of {progress.servers} servers are done"
    age_s = max(0, round(now - progress.at))
    return f"{progress.model} takes over once every tool is embedded by it: {how_far}, {age_s} s ago."
