"""`toolscale ls`: the state of each server from its intent, and the token cost of its tools."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from rich.table import Table

from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.quoting import printable
from shared.settings import Settings
from shared.upstream.mcp_json import EntryProblem
from toolscale.client.costs import ServerCost
from toolscale.console import ago, percent, thousands


@dataclass(frozen=True, slots=True)
class Row:
    """A server, or servers with the same tools by their last listings: their intents by id, sorted, and their cost.

    An intent is None, and ids may be missing, where only the query service knows the servers. `left_out` is the reason
    why the entry of a single server in the `mcp.json` is left out.
    """

    intents: Mapping[str, Intent | None]
    cost: ServerCost | None
    left_out: str | None = None

    @property
    def server(self) -> str:
        """Return the first server."""
        return next(iter(self.intents))

    @property
    def count(self) -> int:
        """Return the number of servers."""
        return len(self.intents) if self.cost is None or any(self.intents.values()) else self.cost.count


def servers(settings: Settings) -> list[Intent]:
    """Return the intents of all announced servers, by id.

    Raises:
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        return list(intents.intents())


def rows(
    intents: Collection[Intent], costs: Mapping[str, ServerCost], left_out: Iterable[EntryProblem] = ()
) -> list[Row]:
    """Return every server of these collections, those with the same tools in one row, ordered by their first id.

    A server whose entry is left out has a row of its own.
    """
    reasons = {entry.server_id: entry.reason for entry in left_out}
    sets: dict[tuple[str, str], dict[str, Intent | None]] = defaultdict(dict)
    for intent in sorted(intents, key=lambda intent: intent.server_id):
        is_alone = not intent.catalogue_id or intent.server_id in reasons
        key = ("", intent.server_id) if is_alone else (intent.catalogue_id, "")
        sets[key][intent.server_id] = intent
    known = {intent.server_id for intent in intents}
    unknown = [dict.fromkeys(cost.replicas or (server,)) for server, cost in costs.items() if server not in known]
    unknown += [{server: None} for server in reasons.keys() - known - costs.keys()]
    found = [_row(servers, costs, reasons) for servers in (*sets.values(), *unknown)]
    return sorted(found, key=lambda row: row.server)


def _row(servers: Mapping[str, Intent | None], costs: Mapping[str, ServerCost], reasons: Mapping[str, str]) -> Row:
    return Row(servers, _cost_of(servers, costs), reasons.get(next(iter(servers))) if len(servers) == 1 else None)


def _cost_of(servers: Collection[str], costs: Mapping[str, ServerCost]) -> ServerCost | None:
    """Return the sum of the costs under these ids; several are there while the servers change."""
    of_row = [costs[server] for server in servers if server in costs]
    if len(of_row) <= 1:
        return next(iter(of_row), None)
    return replace(
        of_row[0],
        tokens=sum(cost.tokens or 0 for cost in of_row),
        part=sum(cost.part or 0 for cost in of_row),
        count=sum(cost.count for cost in of_row),
    )


def opened(row: Row) -> list[Row]:
    """Return the row, and then each of its servers in a row without costs, where there are several."""
    replicas = [Row({server: intent}, None) for server, intent in row.intents.items()]
    return [row, *replicas] if row.count > 1 else [row]


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
    if intent.is_installing:
        return "installing"
    if intent.listed_at is None:
        return "not listed yet"
    return "waiting" if intent.is_lagging else "listed"


def summary(intents: Collection[Intent]) -> str:
    """Return the states of these servers, and the number of their changed tools that no operator has accepted."""
    changed = sum(intent.unaccepted for intent in intents)
    tools = f", {changed:,} {'tool' if changed == 1 else 'tools'} changed" if changed else ""
    return _states(intents) + tools


def _states(intents: Collection[Intent]) -> str:
    """Return a word if the states are equal, else the number of servers in each."""
    if len(intents) == 1:
        return state(next(iter(intents)))
    words = Counter(state(intent).partition(" (")[0] for intent in intents).most_common()
    return words[0][0] if len(words) == 1 else ", ".join(f"{count} {word}" for word, count in words)


def is_failing(row: Row) -> bool:
    """Return whether the last reconciliation of a server that should run failed, or of any of these replicas."""
    return any(
        intent.status == "running" and (intent.last_error or intent.parked)
        for intent in row.intents.values()
        if intent is not None
    )


def as_object(row: Row) -> dict[str, Any]:
    """Return a row as JSON; unknown values are null. Several servers are under `replicas`, each with its state."""
    costs = {"tools": len(row.cost.tools), "tokens": row.cost.tokens, "share": row.cost.part} if row.cost else {}
    left_out = {"state": "left out", "left_out": row.left_out} if row.left_out else {}
    shown = {"server_id": row.server, "tools": None, "tokens": None, "share": None} | costs | left_out
    if row.count == 1:
        return shown | _announced(row.intents[row.server])
    replicas = [{"server_id": server} | _announced(intent) for server, intent in row.intents.items()]
    return shown | {"count": row.count, "replicas": replicas}


def _announced(intent: Intent | None) -> dict[str, Any]:
    if intent is None:
        return {}
    return {
        "state": state(intent),
        "transport": intent.announcement.transport,
        "url": intent.announcement.url,
        "groups": sorted(intent.announcement.groups),
        "source": intent.source,
        "unaccepted": intent.unaccepted,
        "listed_at": _iso(intent.listed_at),
        "next_reconcile_at": _iso(intent.due_at),
        "last_error": intent.last_error,
        "conflict": intent.conflict,
    }


_COLUMNS = ("server", "state", "tools", "tokens", "share", "listed", "reconcile")
_FIGURES = ("tools", "tokens", "share")
_WORDS = ("server", "state")
# Columns that a narrow terminal omits.
_DISPENSABLE = ("share", "reconcile")
NARROW = 80


def table(found: Collection[Row], width: int) -> Table:
    """Return the servers as a table of at most this width in characters; ids and numbers are never cut."""
    columns = [column for column in _COLUMNS if width >= NARROW or column not in _DISPENSABLE]
    shown = Table(box=None, header_style="bold")
    for column in columns:
        justify: Literal["left", "right"] = "right" if column in _FIGURES else "left"
        shown.add_column(column, justify=justify, overflow="fold", no_wrap=column not in _WORDS)
    for row in found:
        cells: dict[str, str] = dict(zip(_COLUMNS, _cells(row), strict=True))
        shown.add_row(*(cells[column] for column in columns))
    return shown


def problems(found: Iterable[Row]) -> list[str]:
    """Return a line for each row with an error: the first server with one, and its error or left-out entry."""
    lines = (
        f"{row.server}: its entry is left out: {row.left_out}"
        if row.left_out
        else _problem([intent for intent in row.intents.values() if intent])
        for row in found
    )
    return list(dict.fromkeys(printable(line) for line in lines if line))


def _cells(row: Row) -> list[str]:
    name = printable(row.server) + (f" × {row.count}" if row.count > 1 else "")
    cost = row.cost
    costs = [thousands(len(cost.tools)), thousands(cost.tokens), percent(cost.part)] if cost else ["", "", ""]
    intents = [intent for intent in row.intents.values() if intent]
    if not intents:
        return [name, "left out" if row.left_out else "", *costs, "", ""]
    return [name, summary(intents), *costs, _listed(intents), _wait(intents)]


def _listed(intents: Collection[Intent]) -> str:
    """Return the age of the oldest listing; a server without one is in its state."""
    return ago(min((intent.listed_at for intent in intents if intent.listed_at), default=None), time.time())


def _problem(intents: Iterable[Intent]) -> str:
    """Return the first error, or refused announcement, of these servers, after the server's id."""
    errors = [(each.server_id, error) for each in intents if (error := each.last_error or each.conflict)]
    if not errors:
        return ""
    server, error = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{server}: {error.removeprefix(f'{server}: ')}{more}"


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _wait(intents: Collection[Intent]) -> str:
    """Return the time until the next reconciliation of any of these servers."""
    due_at = min((intent.due_at for intent in intents if intent.due_at is not None), default=None)
    return "when announced" if due_at is None else f"in {max(0, round(due_at - time.time()))} s"


def total(found: Collection[Row]) -> str | None:
    """Return the sum over all rows beside the sum over one server of each; None if no servers are replicas."""
    costs = [row.cost for row in found if row.cost]
    if all(cost.count == 1 for cost in costs):
        return None
    tools = sum(cost.count * len(cost.tools) for cost in costs)
    tokens = sum(cost.tokens or 0 for cost in costs)
    tools_once = sum(len(cost.tools) for cost in costs)
    tokens_once = sum((cost.tokens or 0) // cost.count for cost in costs)
    return f"{tools:,} tools, {tokens:,} tokens; without replicas {tools_once:,} tools, {tokens_once:,} tokens"


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
