"""Servers whose tools cannot be listed now: which of them concern a request, and what an answer says of each.

A model that does not hear of them concludes that there is no such tool.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from query.named import is_named, terms_of
from shared.errors import NEEDS_SIGN_IN
from shared.text.bm25 import words
from shared.upstream.session import LAST_WORDS

if TYPE_CHECKING:
    from shared.catalog import ServerRecord, ServerState

# More would crowd out the tools of a short answer.
SHOWN, SHOWN_STALE = 3, 8
REASON_CHARACTERS = 160
# A listing takes seconds, or the time in which a package is installed.
LISTED_WITHIN_S = 60.0
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')
_RETRIED: tuple[ServerState, ...] = ("failing", "quarantined")


def absence(record: ServerRecord) -> str:
    """Return why no tool of a server can be called, as the rest of a sentence: its state, the reason, what helps."""
    return ". ".join((_why(record), *_closing([record]))).rstrip(".")


def absences(absent: Sequence[ServerRecord], texts: Iterable[str], *, all_unreached: bool) -> list[str]:
    """Return sentences on those of these servers that the texts name, by all words of the id or the declared name.

    With `all_unreached`, also on the others that should be there: not those that are stopped or being listed.
    """
    if not absent:
        return []
    asked = terms_of(" ".join(texts))
    named = [record for record in absent if is_named(record, asked)]
    unreached = [record for record in absent if _is_unreached(record) and record not in named]
    found = [*named, *(unreached if all_unreached else ())]
    shown, rest = found[:SHOWN], len(found) - SHOWN
    more = [f"{rest} more servers have no tools now; `toolscale ls` shows them."] if rest > 0 else []
    return [*(f"{record.server_id} {_why(record)}." for record in shown), *_closing(shown), *more]


def unknown_tool_hints(name: str, absent: Sequence[ServerRecord], stale: Sequence[ServerRecord]) -> tuple[str, ...]:
    """Return sentences on the servers that the name of no known tool names: the tool may be there nevertheless."""
    text = words(name)
    asked = terms_of(text)
    old = staleness(record.server_id for record in stale if is_named(record, asked))
    return (*absences(absent, [text], all_unreached=False), *old)


def staleness(server_ids: Iterable[str]) -> list[str]:
    """Return a sentence on these servers, whose tools are those of an earlier listing; none without any."""
    stale = sorted(set(server_ids))
    rest = len(stale) - SHOWN_STALE
    names = ", ".join(stale[:SHOWN_STALE]) + (f" and {rest} more" if rest > 0 else "")
    return [f"Tools of {names} may be out of date: their servers did not answer."] if stale else []


def is_overdue(record: ServerRecord) -> bool:
    """Return whether a server was announced a while ago, and its listing has neither ended nor failed."""
    is_awaited = record.state in ("installing", "waiting") and record.last_listed_at is None
    return is_awaited and time.time() - _announced_at(record) > LISTED_WITHIN_S


def _is_unreached(record: ServerRecord) -> bool:
    return _is_retried(record) or record.state == "sign-in"


def _is_retried(record: ServerRecord) -> bool:
    return record.state in _RETRIED or is_overdue(record)


def _announced_at(record: ServerRecord) -> float:
    """Return when the record of a server without a listing was written, in seconds since the epoch."""
    return record.revision / 1e6


def _why(record: ServerRecord) -> str:
    server_id = record.server_id
    match record.state:
        case "sign-in":
            return f"{NEEDS_SIGN_IN}; ask the user to run `toolscale login {server_id}`"
        case "installing" | "waiting" if is_overdue(record):
            since = datetime.fromtimestamp(_announced_at(record), UTC)
            return f"has not been listed since it was announced, {since:%Y-%m-%d %H:%M} UTC"
        case "installing" | "waiting":
            return "is still being listed; ask again in a few seconds"
        case "stopped":
            return "is stopped, so its tools cannot be called now"
        case _:
            # without the server's own words, which would be read as Toolscale's
            reason = _QUOTED.sub('"…"', (record.last_error or "").partition(LAST_WORDS)[0])
            reason = " ".join(reason.removeprefix(f"{server_id}: ").split()).rstrip(".")
            shown = f" ({reason[:REASON_CHARACTERS]})" if reason else ""
            return ("is quarantined" if record.state == "quarantined" else "cannot be listed") + shown


def _closing(records: Sequence[ServerRecord]) -> list[str]:
    """Return a sentence on what becomes of those of these servers that are retried; none without any."""
    retried = [record.server_id for record in records if _is_retried(record)]
    named = retried[0] if len(retried) == 1 else "SERVER"
    return [f"Listing is retried by itself; `toolscale show {named}` says more."] if retried else []
