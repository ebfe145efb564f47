"""The feed: the last events of servers and the last calls, which a page reads again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import TYPE_CHECKING

from query.servers import ServerRow
from query.usage.report import is_unrestricted
from query.web.page import Page, servers_of

if TYPE_CHECKING:
    from query.servers import ServerTable
    from query.usage.last_calls import LastCall
    from query.web.page import PageRequest

MOST_SERVERS, MOST_CALLS = 6, 8

OUTCOMES: Mapping[str, str] = {
    "ok": "ok",
    "tool_error": "returned an error",
    "cancelled": "cancelled",
    "InputRequired": "waits for an answer of its user",
    "ArgumentsInvalid": "refused: its arguments are invalid",
    "ToolNotFound": "refused: there is no such tool",
    "CallDenied": "denied by the policy",
    "ToolExcluded": "excluded by the operator",
    "CallNotConfirmed": "not confirmed by its user",
    "ClientNotAsked": "refused: its client cannot be asked",
    "CallsExhausted": "refused: too many calls at once",
    "SignInRequired": "needs a sign-in",
    "ServerNotRunning": "refused: its server is stopped",
}


@dataclass(frozen=True, slots=True)
class FeedLine:
    """An event at a time in seconds since the epoch, None: it goes on now. It is about a server, or a call."""

    at_s: float | None
    row: ServerRow | None = None
    call: LastCall | None = None

    @property
    def outcome(self) -> str:
        """Return the outcome of the call in words."""
        return OUTCOMES.get(self.call.outcome, "failed") if self.call else ""


def feed_lines(request: PageRequest, table: ServerTable) -> Sequence[FeedLine]:
    """Return the events of servers and calls that the caller may see, those that go on first, then the latest."""
    of_servers = [FeedLine(_time_of(row), row) for row in nlargest(MOST_SERVERS, table.rows, key=_latest)]
    caller = None if is_unrestricted(request.caller) else request.caller.name
    of_calls = (FeedLine(call.at_s, call=call) for call in islice(request.catalogue.last_calls.of(caller), MOST_CALLS))
    return sorted([*of_servers, *of_calls], key=_time, reverse=True)


def feed(request: PageRequest) -> Page:
    """Return the feed alone, for a page that has it already."""
    return Page("feed.html", feed_values(request, servers_of(request)))


def feed_values(request: PageRequest, table: ServerTable) -> dict[str, object]:
    """Return the values of the feed's template. `view` changes when the page has to be another one."""
    view = "full" if table.tools else "servers" if table.rows else "empty"
    return {"lines_of_feed": feed_lines(request, table), "view": view, "now": time.time()}


def _time_of(row: ServerRow) -> float | None:
    record = row.record
    if record.state in ("waiting", "installing"):
        return None
    if record.status == "stopped":
        return record.stopped_at or 0.0
    return record.stale_since or record.last_listed_at or 0.0


def _latest(row: ServerRow) -> float:
    at_s = _time_of(row)
    return math.inf if at_s is None else at_s


def _time(line: FeedLine) -> float:
    return math.inf if line.at_s is None else line.at_s
