"""The servers in a caller's scope: their states, costs and problems, for the page, and as JSON for `toolscale ls`.

A record of the index has the state that readers find. An intent adds the next reconciliation and the latest error; it
is absent where the service has no intent store.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from query.answers.answer import first_sentence, share
from query.kept import Recent
from query.replicas import set_key
from query.tools.list_available_tools import tools_of
from query.usage.report import is_unrestricted
from shared.amounts import span
from shared.catalog import NAME_LABEL, OPERATOR_SOURCE, ServerRecord, ServerState
from shared.errors import ServerUnknown
from shared.text.tokens import PROFILE, Profile
from shared.upstream.masking import masked

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller
    from query.catalogue import Catalogue
    from shared.catalog import Encoding, Scope, ServerRecord
    from shared.intents.intent import Intent

Object = dict[str, Any]

STOPPED_SHOWN_S = 7 * 86_400.0
"""Seconds for which a stopped server is shown."""

_WITHOUT_TOOLS: tuple[ServerState, ...] = ("failing", "waiting", "installing")


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server, and the cost of its tools for this caller; None if they cannot be found.

    `part` is its share of the cost of the caller's scope, 0 to 1.
    """

    record: ServerRecord
    tools: int | None = None
    tokens: int | None = None
    part: float | None = None

    @property
    def state(self) -> ServerState:
        """Return the state of the server."""
        return self.record.state

    @property
    def needs_attention(self) -> bool:
        """Return whether an operator should look at the server."""
        has_unusual_tools = bool(self.record.rejected or self.record.marked or self.record.unaccepted)
        return self.state in ("failing", "stale", "quarantined", "sign-in") or has_unusual_tools


@dataclass(frozen=True, slots=True)
class SetRow:
    """A server, or servers with the same tools by their last listings, by id."""

    rows: Sequence[ServerRow]

    @property
    def server_id(self) -> str:
        """Return the first server."""
        return self.rows[0].record.server_id

    @property
    def states(self) -> Sequence[tuple[ServerState, int]]:
        """Return the number of servers in each state, the most common first."""
        states: Counter[ServerState] = Counter(row.state for row in self.rows)
        return states.most_common()

    @property
    def tools(self) -> int | None:
        """Return the number of tools of one server; None if none of them can be found."""
        return max((row.tools for row in self.rows if row.tools is not None), default=None)

    @property
    def with_changes(self) -> Sequence[ServerRow]:
        """Return the servers with changed definitions that no operator has accepted."""
        return [row for row in self.rows if row.record.unaccepted]

    @property
    def tokens(self) -> int | None:
        """Return the cost of all servers."""
        known = [row.tokens for row in self.rows if row.tokens is not None]
        return sum(known) if known else None

    @property
    def tokens_of_one(self) -> int:
        """Return the cost of one server."""
        return max((row.tokens for row in self.rows if row.tokens is not None), default=0)

    @property
    def last_listed_at(self) -> float | None:
        """Return the time of the oldest last listing, in seconds since the epoch."""
        return min(row.record.last_listed_at or 0 for row in self.rows) or None


@dataclass(frozen=True, slots=True)
class ServerTable:
    """All servers of a caller's scope, by id, the same in their replica sets, and the total cost of the running ones.

    `sets` are ordered by their first server.
    """

    rows: Sequence[ServerRow]
    sets: Sequence[SetRow]
    tools: int
    tokens: int
    encoding: Encoding
    profile: Profile = PROFILE

    @property
    def running(self) -> int:
        """Return the number of servers whose tools can be found."""
        return sum(row.tools is not None for row in self.rows)

    @property
    def distinct_tools(self) -> int:
        """Return the number of tools with one server of each replica set."""
        return sum(of_set.tools or 0 for of_set in self.sets)

    @property
    def distinct_tokens(self) -> int:
        """Return the cost of one server of each replica set."""
        return sum(of_set.tokens_of_one for of_set in self.sets)

    def part(self, of_set: SetRow) -> float | None:
        """Return the share of these servers in the cost of the caller's scope, 0 to 1."""
        return share(of_set.tokens, self.tokens)

    def row(self, server_id: str) -> ServerRow | None:
        """Return the server of this id, None if the scope has none."""
        return next((row for row in self.rows if row.record.server_id == server_id), None)

    def set_of(self, row: ServerRow) -> SetRow:
        """Return the replica set of a server."""
        return next(of_set for of_set in self.sets if row in of_set.rows)


def servers_for(scope: Scope, catalogue: Catalogue) -> ServerTable:
    """Return the servers of the scope, with those that stopped in the last `STOPPED_SHOWN_S`.

    Raises:
        IndexUnavailable: the index did not answer.
    """
    ledger, encoding = catalogue.ledger, catalogue.encoding
    costs = ledger.by_server(scope, encoding)
    tokens = sum(cost.model_tokens for cost in costs.values())
    rows: list[ServerRow] = []
    sets: dict[tuple[str, str], list[ServerRow]] = defaultdict(list)
    earliest = time.time() - STOPPED_SHOWN_S
    for record in ledger.known(scope):
        if record.status == "stopped" and (record.stopped_at or earliest) < earliest:
            continue
        row, cost = ServerRow(record), costs.get(record.server_id)
        if cost is not None and not cost.tools and record.tool_count:  # the policy denies each of its tools
            continue
        if cost is not None and record.state not in _WITHOUT_TOOLS:
            row = ServerRow(record, cost.tools, cost.model_tokens, share(cost.model_tokens, tokens))
        rows.append(row)
        sets[set_key(record, scope)].append(row)
    tools = sum(cost.tools for cost in costs.values())
    return ServerTable(rows, [SetRow(of_set) for of_set in sets.values()], tools, tokens, encoding)


class ServerTables:
    """The tables of scopes, kept for some seconds while no server changes: a table of thousands takes 0.1 s."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._recent: Recent[ServerTable] = Recent(most=8)

    def of(self, scope: Scope) -> ServerTable:
        """Return the table of a scope.

        Raises:
            IndexUnavailable: the index did not answer.
        """
        state = self._catalogue.ledger.state()
        return self._recent.get_or_read((scope,), state, lambda: servers_for(scope, self._catalogue))


def servers(caller: Caller, scope: Scope, catalogue: Catalogue, only: str | None = None) -> Object:
    """Return all servers of the scope, by id; with `only`, the intents of the others are not read.

    `set` is the first of the servers with the same tools. `share` is a part of the cost of the whole scope, 0 to 1.
    Times are seconds since the epoch. Only a caller without restriction gets each `url`, with masked secrets, and
    `left_out`, `backlog` and `notes`.

    Raises:
        IndexUnavailable, IntentsUnavailable: a store does not answer.
    """
    table, shows_all = servers_for(scope, catalogue), is_unrestricted(caller)
    known: dict[str, Intent] = {}
    if catalogue.intents:
        found = filter(None, [catalogue.intents.intent(only)]) if only else catalogue.intents.intents()
        known = {intent.server_id: intent for intent in found}
    rows = [
        _object(row, known.pop(row.record.server_id, None), of_set.server_id, shows_url=shows_all)
        for of_set in table.sets
        for row in of_set.rows
    ]
    of_any_status = replace(scope, status=None)
    for intent in known.values():  # announced, and not in the index yet
        if intent.status == "stopped" and not intent.is_lagging:  # it stopped long ago
            continue
        record = ServerRecord(
            server_id=intent.server_id,
            endpoint=intent.announcement.endpoint,
            groups=intent.announcement.groups,
            source=intent.source,
            status=intent.status,
            stale_since=0.0 if intent.last_error else None,
        )
        if of_any_status.admits(record):
            rows.append(_object(ServerRow(record), intent, intent.server_id, shows_url=shows_all))
    answer: Object = {"servers": sorted(rows, key=lambda row: row["server_id"])}
    return answer | (_of_operator(catalogue) if shows_all else {})


def server(
    server_id: str, caller: Caller, scope: Scope, catalogue: Catalogue, log_directory: Path | None, lines: int
) -> Object:
    """Return a server of the scope with its tools, the most expensive first.

    `lines` are the last lines of its stderr, null without a directory of logs.

    Raises:
        ServerUnknown: the scope has no server of this id.
        IndexUnavailable, IntentsUnavailable: a store does not answer.
    """
    found = {row["server_id"]: row for row in servers(caller, scope, catalogue, server_id)["servers"]}
    if server_id not in found:
        known = [row["server_id"] for row in servers(caller, scope, catalogue)["servers"]]
        raise ServerUnknown.near(server_id, known)
    row, record = found[server_id], catalogue.ledger.record(server_id)
    tools: list[Object] = []
    if record:
        of_server = replace(scope, servers=frozenset({server_id}), status=record.status)
        tools = [
            {
                "name": tool.definition.name,
                "tokens": (tokens := tool.model_counts.get(catalogue.encoding)),
                "share": share(tokens, row["tokens"] or 0),
                "description": first_sentence(tool.definition.description),
            }
            for tool in tools_of(of_server, catalogue)
        ]
    words = None
    if log_directory:
        from shared.upstream.log import last_lines  # noqa: PLC0415

        words = last_lines(log_directory, server_id, lines)
    tools.sort(key=lambda tool: (-(tool["tokens"] or 0), tool["name"]))
    return {**row, "tools": tools, "lines": words}


def _object(row: ServerRow, intent: Intent | None, first: str, *, shows_url: bool) -> Object:
    record, latest = row.record, intent or row.record
    listed_at = max((at for at in (record.last_listed_at, intent.listed_at if intent else None) if at), default=None)
    is_wanted = latest.status != "stopped"  # a server that failed for a day is stopped, and wanted
    return {
        "server_id": record.server_id,
        "name": _name(record, (intent.announcement if intent else record).labels),
        "set": first,
        "state": row.state,
        "transport": record.endpoint.transport,
        "url": _shown(record.endpoint.url) if shows_url else None,
        "groups": sorted(record.groups),
        "source": record.source,
        "tools": row.tools,
        "tokens": row.tokens,
        "share": row.part,
        "listed_at": listed_at,
        "next_reconcile_at": intent.due_at if intent else record.next_reconcile_at,
        "failures": latest.failures,
        "unaccepted": latest.unaccepted,
        "last_error": latest.last_error,
        "conflict": intent.conflict if intent else None,
        "is_failing": is_wanted and bool(latest.last_error),
    }


def _name(record: ServerRecord, labels: Mapping[str, str]) -> str:
    """Return the name of a server as the operator wrote it; another sender's label could be the name of this one."""
    return labels.get(NAME_LABEL, record.server_id) if record.source == OPERATOR_SOURCE else record.server_id


def _of_operator(catalogue: Catalogue) -> Object:
    """Return what is not about one server: left-out entries of the mcp.json, the backlog, and notes for people."""
    followed, intents = catalogue.followed_config(), catalogue.intents
    left_out = (
        [{"server_id": entry.server_id, "reason": entry.reason} for entry in followed.left_out] if followed else []
    )
    progress = intents.migration() if intents else None
    notes: list[str] = []
    if intents and progress:
        age_s = max(0, round(intents.now() - progress.at))
        how_far = f"{progress.done} of {progress.servers} servers are done, {span(age_s)} ago"
        notes.append(f"{progress.model} takes over once every tool is embedded by it: {how_far}.")
    notes += [followed.summary] if followed else []
    backlog = intents.backlog() if intents else None
    numbers = (
        {"due": backlog.due, "overdue_s": round(backlog.overdue_s, 1), "dead_letters": backlog.dead_letters}
        if backlog
        else None
    )
    return {"left_out": left_out, "backlog": numbers, "notes": notes}


def _shown(url: str | None) -> str | None:
    entry: Any = masked({"url": url.partition("?")[0].partition("#")[0]}) if url else {}  # a query may hold a key
    shown: str | None = entry.get("url")
    return shown
