"""The address of a server, its next reconciliation, the last words of its process, and its callers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Literal, cast

from query.usage.report import is_unrestricted
from query.web.page import PageRequest
from shared.catalog import OPERATOR_SOURCE, ServerRecord
from shared.upstream.masking import masked
from shared.upstream.session import LAST_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from query.catalogue import Catalogue

SHOWN = 20


@dataclass(frozen=True, slots=True)
class NextRun:
    """The time of the next reconciliation in seconds since the epoch, or a word; `is_latest` marks an upper bound."""

    at_s: float | None = None
    is_latest: bool = False
    word: Literal["", "when announced", "paused after failures", "soon"] = ""


def next_run(record: ServerRecord, catalogue: Catalogue) -> NextRun:
    """Return when the server is reconciled next, as far as its record and the settings of this process show it."""
    if record.status == "stopped":
        return NextRun(word="when announced")
    if record.next_reconcile_at is not None:
        return NextRun(record.next_reconcile_at)
    if record.failures:
        return NextRun(word="paused after failures")
    if record.last_listed_at is None:
        return NextRun(word="soon")
    is_stdio = record.endpoint.transport == "stdio"
    interval_s = catalogue.stdio_resync_interval_s if is_stdio else catalogue.resync_interval_s
    return NextRun(record.last_listed_at + interval_s, is_latest=True) if interval_s else NextRun(word="when announced")


def address(record: ServerRecord, request: PageRequest) -> str | None:
    """Return the URL or the command of a server with masked secrets; None if unknown, or not for this caller.

    Only the entry of an `mcp.json` has a command, as it is written there.
    """
    if not is_unrestricted(request.caller):
        return None
    if record.endpoint.url:
        return str(_masked({"url": record.endpoint.url})["url"])
    entry = request.catalogue.operator_entry(record.server_id) if record.source == OPERATOR_SOURCE else None
    if entry is None:
        return None
    parts = _masked(entry)
    return " ".join(map(str, (parts.get("command", ""), *parts.get("args", ()))))


def split_error(error: str | None) -> tuple[str | None, str | None]:
    """Return the last error without its quote of the process's stderr, and that quote as text."""
    before, mark, quoted = (error or "").rpartition(LAST_WORDS)
    try:
        words: object = json.loads(quoted) if mark else None
    except ValueError:  # a server's own text contains the mark
        words = None
    return (before, words) if isinstance(words, str) else (error, None)


def callers_of(server_id: str, first: date, last: date, request: PageRequest) -> Sequence[tuple[str, int]] | None:
    """Return the callers of a server with their calls, the most frequent first; None if not for this caller.

    Raises:
        HistoryUnavailable: the history did not answer.
    """
    usage = request.catalogue.usage
    if usage is None or not is_unrestricted(request.caller):
        return None
    counts: Counter[str] = Counter()
    for (caller, _, _), sums in usage.sums(first, last, ("calls",), servers=[server_id]).items():
        counts[caller] += sums["calls"]
    return counts.most_common(SHOWN)


def _masked(entry: object) -> dict[str, Any]:
    parts = masked(entry)
    return cast("dict[str, Any]", parts) if isinstance(parts, dict) else {}
