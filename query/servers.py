"""The servers in a caller's scope as JSON: their states, costs and problems, for `toolscale ls` and `show`.

A record of the index has the state that readers find. An intent adds the next reconciliation and the latest error; it
is absent where the service has no intent store.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from query.answers.answer import first_sentence, share
from query.replicas import set_key
from query.tools.list_available_tools import tools_of
from query.usage.report import is_unrestricted
from shared.catalog import ServerState
from shared.errors import ServerUnknown
from shared.upstream.masking import masked

if TYPE_CHECKING:
    from pathlib import Path

    from query.caller import Caller
    from query.catalogue import Catalogue
    from query.records import Baseline
    from shared.catalog import Scope, ServerRecord
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents

Object = dict[str, Any]

_WITHOUT_TOOLS: tuple[ServerState, ...] = ("failing", "waiting", "installing")


def servers(caller: Caller, catalogue: Catalogue, intents: Intents | None, only: str | None = None) -> Object:
    """Return all servers of the caller's scope, by id; with `only`, the intents of the others are not read.

    `set` is the first of the servers with the same tools. `share` is a part of the cost of the whole scope, 0 to 1.
    Times are seconds since the epoch. Only a caller without restriction gets each `url`, with masked secrets, and
    `left_out`, `backlog` and `notes`.

    Raises:
        IndexUnavailable, IntentsUnavailable: a store does not answer.
    """
    scope, ledger = caller.scope, catalogue.ledger
    costs = ledger.by_server(scope, catalogue.encoding)
    total = sum(cost.model_tokens for cost in costs.values())
    known: dict[str, Intent] = {}
    if intents:
        found = filter(None, [intents.intent(only)]) if only else intents.intents()
        known = {intent.server_id: intent for intent in found}
    records = ledger.known(scope)
    rows: list[Object] = []
    first_of: dict[tuple[str, str], str] = {}
    for record in records:
        first = first_of.setdefault(set_key(record, scope), record.server_id)
        cost = None if record.state in _WITHOUT_TOOLS else costs.get(record.server_id)
        rows.append(_row(record, known.pop(record.server_id, None), first, cost, total))
    rows += [_unlisted(intent) for intent in known.values() if _admits(scope, intent)]
    if not is_unrestricted(caller):
        rows = [{**row, "url": None} for row in rows]
    answer: Object = {"servers": sorted(rows, key=lambda row: row["server_id"])}
    return answer | (_of_operator(catalogue, intents) if is_unrestricted(caller) else {})


def server(
    server_id: str,
    caller: Caller,
    catalogue: Catalogue,
    intents: Intents | None,
    log_directory: Path | None,
    lines: int,
) -> Object:
    """Return a server of the caller's scope with its tools, the most expensive first.

    `lines` are the last lines of its stderr, null without a directory of logs.

    Raises:
        ServerUnknown: the scope has no server of this id.
        IndexUnavailable, IntentsUnavailable: a store does not answer.
    """
    found = {row["server_id"]: row for row in servers(caller, catalogue, intents, server_id)["servers"]}
    if server_id not in found:
        known = [row["server_id"] for row in servers(caller, catalogue, intents)["servers"]]
        raise ServerUnknown.near(server_id, known)
    row, record = found[server_id], catalogue.ledger.record(server_id)
    tools: list[Object] = []
    if record:
        of_server = replace(caller.scope, servers=frozenset({server_id}), status=record.status)
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


def _row(record: ServerRecord, intent: Intent | None, first: str, cost: Baseline | None, total: int) -> Object:
    latest = intent or record
    listed_at = max((at for at in (record.last_listed_at, intent.listed_at if intent else None) if at), default=None)
    is_wanted = latest.status != "stopped"  # a server that failed for a day is stopped, and wanted
    return {
        "server_id": record.server_id,
        "set": first,
        "state": record.state,
        "transport": record.endpoint.transport,
        "url": _shown(record.endpoint.url),
        "groups": sorted(record.groups),
        "source": record.source,
        "tools": cost.tools if cost else None,
        "tokens": cost.model_tokens if cost else None,
        "share": share(cost.model_tokens, total) if cost else None,
        "listed_at": listed_at,
        "next_reconcile_at": intent.due_at if intent else record.next_reconcile_at,
        "failures": latest.failures,
        "unaccepted": latest.unaccepted,
        "last_error": latest.last_error,
        "conflict": intent.conflict if intent else None,
        "is_failing": is_wanted and bool(latest.last_error),
    }


def _unlisted(intent: Intent) -> Object:
    """Return the row of an announced server that the index does not have yet."""
    return {
        "server_id": intent.server_id,
        "set": intent.server_id,
        "state": _state_of_unlisted(intent),
        "transport": intent.announcement.transport,
        "url": _shown(intent.announcement.url),
        "groups": sorted(intent.announcement.groups),
        "source": intent.source,
        "tools": None,
        "tokens": None,
        "share": None,
        "listed_at": None,
        "next_reconcile_at": intent.due_at,
        "failures": intent.failures,
        "unaccepted": intent.unaccepted,
        "last_error": intent.last_error,
        "conflict": intent.conflict,
        "is_failing": intent.status != "stopped" and bool(intent.last_error),
    }


def _state_of_unlisted(intent: Intent) -> ServerState:
    if intent.status == "stopped":
        return "stopped"
    if intent.last_error:
        return "failing"
    return "installing" if intent.announcement.transport == "stdio" else "waiting"


def _of_operator(catalogue: Catalogue, intents: Intents | None) -> Object:
    """Return what is not about one server: left-out entries of the mcp.json, the backlog, and notes for people."""
    followed = catalogue.followed_config()
    left_out = (
        [{"server_id": entry.server_id, "reason": entry.reason} for entry in followed.left_out] if followed else []
    )
    progress = intents.migration() if intents else None
    notes: list[str] = []
    if intents and progress:
        age_s = max(0, round(intents.now() - progress.at))
        how_far = f"{progress.done} of {progress.servers} servers are done, {age_s} s ago"
        notes.append(f"{progress.model} takes over once every tool is embedded by it: {how_far}.")
    notes += [followed.summary] if followed else []
    backlog = intents.backlog() if intents else None
    numbers = (
        {"due": backlog.due, "overdue_s": round(backlog.overdue_s, 1), "dead_letters": backlog.dead_letters}
        if backlog
        else None
    )
    return {"left_out": left_out, "backlog": numbers, "notes": notes}


def _admits(scope: Scope, intent: Intent) -> bool:
    return (scope.groups is None or not scope.groups.isdisjoint(intent.announcement.groups)) and (
        scope.within is None or scope.within.admits_some_of(intent.server_id)
    )


def _shown(url: str | None) -> str | None:
    entry: Any = masked({"url": url.partition("?")[0].partition("#")[0]}) if url else {}  # a query may hold a key
    shown: str | None = entry.get("url")
    return shown
