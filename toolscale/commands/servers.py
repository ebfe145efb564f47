"""`toolscale ls`, `show` and `logs`: the servers of a catalogue, their costs and their problems."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer

from shared.amounts import ago, ahead, span
from shared.errors import ServerUnknown, ServiceRejected
from shared.quoting import printable
from toolscale.client.service import open_service
from toolscale.commands.options import (
    DataDirOption,
    JsonOption,
    ServerArgument,
    TokenOption,
    UrlOption,
    complete_server,
)
from toolscale.console import (
    FIRST_SERVERS,
    Column,
    out,
    percent,
    print_json,
    print_lines,
    print_notes,
    print_table,
    thousands,
)

Row = dict[str, Any]
Set = Sequence[Row]
"""The servers with the same tools, by id."""

WATCH_S = 2.0
# A narrower terminal omits the columns that can be missed.
NARROW = 80
COLUMNS = (
    Column("server"),
    Column("state"),
    Column("tools", is_number=True),
    Column("tokens", is_number=True),
    Column("share", is_number=True),
    Column("listed"),
    Column("reconcile"),
)
_DISPENSABLE = ("share", "reconcile")
LinesOption = Annotated[int, typer.Option(min=1, max=10_000, help="At most so many of the last lines.")]


def list_servers(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVER",
            help="Show each replica of this server in its own row.",
            show_default=False,
            autocompletion=complete_server,
        ),
    ] = None,
    failing: Annotated[bool, typer.Option("--failing", help="Only servers whose last reconciliation failed.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show the table again every 2 s, until interrupted.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show every server: its state, the cost of its tools, and its problem. Replicas share a row.

    Tokens are of the form that a model API receives (generic profile).
    Below are the number of servers in each state, the due reconciliations and the dead letters.
    During a change of the model, stderr shows its progress.
    A followed mcp.json is named on stderr; its left-out entries are in the table, with the reasons.
    """
    if watch and as_json:
        raise typer.BadParameter("--watch shows a table, so it excludes --json")
    with open_service(url, token, data_dir) as service:
        while True:
            answer = service.servers()
            known = sets_of(answer) if server is None else _sets_with(server, sets_of(answer))
            for note in answer.get("notes", ()):
                print_notes(printable(note))
            if as_json:
                print_json([as_object(each) for each in known if is_failing(each) or not failing])
                return
            if watch:
                out.clear()
            _print_servers(known, answer, failing=failing, is_one=server is not None)
            if not watch:
                return
            time.sleep(WATCH_S)


def show(
    server: ServerArgument,
    lines: LinesOption = 10,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a server's tools and their tokens (generic profile), the largest first, its last failure and log lines."""
    found = _server(server, lines, url, token, data_dir)
    if as_json:
        tools = [{name: tool[name] for name in ("name", "tokens", "share")} for tool in found["tools"]]
        print_json(_of_one(found) | {"tools": tools, "lines": found["lines"]})
        return
    if found["tools"]:
        numbers = (Column("tokens", is_number=True), Column("share", is_number=True))
        rows: list[tuple[str, ...]] = []
        for tool in found["tools"]:
            name, does = printable(tool["name"]), printable(tool["description"])
            rows.append((name, thousands(tool["tokens"]), percent(tool["share"]), does))
        print_table((Column("tool"), *numbers, Column("what it does")), rows)
        of_all = f": {percent(found['share'])} of all" if found["share"] is not None else ""
        print_lines(f"{len(found['tools'])} tools, {found['tokens'] or 0:,} tokens{of_all}")
    else:
        is_so = "needs a sign-in" if found["state"] == "sign-in" else f"is {found['state']}"
        print_lines(f"{printable(server)} has no searchable tools; it {is_so}.")
    if found["last_error"]:
        print_lines(*map(printable, found["lines"] or ()), _failure(found))


def logs(
    server: ServerArgument,
    lines: LinesOption = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show the last lines that a stdio server wrote to stderr, and its last failure.

    `toolscale serve` stores these lines in the data directory, with credentials replaced.
    """
    found = _server(server, lines, url, token, data_dir)
    if found["lines"] is None:
        raise ServiceRejected("this service keeps no lines of servers, or shows you none; see the log of the workers")
    if as_json:
        failure = {"failures": found["failures"], "last_error": found["last_error"]}
        print_json({"server_id": server, "state": found["state"], **failure, "lines": found["lines"]})
        return
    print_lines(*map(printable, found["lines"]))
    if not found["lines"]:
        is_stdio = found["transport"] == "stdio"
        reason = (
            "wrote nothing to stderr." if is_stdio else "is reached by a URL, so Toolscale does not see its stderr."
        )
        print_notes(f"{printable(server)} {reason}")
    if found["last_error"]:
        print_lines(_failure(found))


def _server(server: str, lines: int, url: str | None, token: str | None, data_dir: Any) -> Row:
    with open_service(url, token, data_dir) as service:
        found: Row = service.get(f"/api/servers/{quote(server)}", lines=lines)
    return found


def sets_of(answer: Row) -> list[list[Row]]:
    """Return the servers of an answer, those with the same tools together, ordered by their first id.

    A server whose entry is left out of the mcp.json is by itself, with the reason.
    """
    reasons = {entry["server_id"]: entry["reason"] for entry in answer.get("left_out", ())}
    known = {row["server_id"] for row in answer["servers"]}
    entries = [_left_out(server_id) for server_id in reasons if server_id not in known]
    sets: dict[tuple[str, bool], list[Row]] = {}
    for row in sorted([*answer["servers"], *entries], key=lambda row: str(row["server_id"])):
        reason = reasons.get(row["server_id"])
        key = (row["server_id"], True) if reason else (row["set"], False)
        sets.setdefault(key, []).append(row | {"left_out": reason})
    return sorted(sets.values(), key=lambda servers: str(servers[0]["server_id"]))


def _left_out(server_id: str) -> Row:
    absent = (
        *("transport", "url", "source", "tools", "tokens", "share", "listed_at", "next_reconcile_at"),
        *("last_error", "conflict"),
    )
    none: Row = {"failures": 0, "unaccepted": 0, "is_failing": False, "groups": []}
    return {
        "server_id": server_id,
        "set": server_id,
        "state": "left out",
        **dict.fromkeys(absent),
        **none,
    }


def _sets_with(server: str, sets: Sequence[Set]) -> list[Set]:
    """Return the set of a server, and its left-out entry.

    Raises:
        ServerUnknown: there is no such server.
    """
    found = [servers for servers in sets if server in (row["server_id"] for row in servers)]
    if not found:
        raise ServerUnknown.near(server, [row["server_id"] for servers in sets for row in servers])
    return found


def is_failing(servers: Set) -> bool:
    """Return whether the last reconciliation of any of these servers failed that should run."""
    return any(row["is_failing"] for row in servers)


def as_object(servers: Set) -> Row:
    """Return servers with the same tools as JSON; several are under `replicas`, each with its state."""
    if len(servers) == 1:
        return _of_one(servers[0])
    sums = {"tools": _tools(servers), "tokens": _sum(servers, "tokens"), "share": _sum(servers, "share")}
    costs = ("tools", "tokens", "share", "left_out")
    replicas = [{name: value for name, value in _of_one(row).items() if name not in costs} for row in servers]
    return {"server_id": servers[0]["server_id"], **sums, "count": len(servers), "replicas": replicas}


def _of_one(row: Row) -> Row:
    shown = {name: value for name, value in row.items() if name not in ("set", "is_failing", "tools", "lines")}
    times = {
        name: None if row[name] is None else datetime.fromtimestamp(row[name], UTC).isoformat(timespec="seconds")
        for name in ("listed_at", "next_reconcile_at")
    }
    left_out = {"left_out": row["left_out"]} if row.get("left_out") else {}
    shown.pop("left_out", None)
    return {"server_id": row["server_id"], "tools": row["tools"]} | shown | times | left_out


def _print_servers(known: Sequence[Set], answer: Row, *, failing: bool, is_one: bool) -> None:
    shown = [each for each in known if is_failing(each) or not failing]
    if failing or is_one:  # each replica in a row of its own, below their sum
        opened = [[each, *([[row] for row in each] if len(each) > 1 else [])] for each in shown]
        shown = [part for parts in opened for part in parts if is_failing(part) or not failing]
    if shown:
        columns = [column for column in COLUMNS if out.width >= NARROW or column.title not in _DISPENSABLE]
        cells = [dict(zip((column.title for column in COLUMNS), cells_of(each), strict=True)) for each in shown]
        print_table(columns, [[row[column.title] for column in columns] for row in cells])
    else:
        none = "No server fails." if failing else "No server was announced yet."
        print_lines(none if known else f"{none} {FIRST_SERVERS}")
    if not (failing or is_one):
        print_lines(*footer(known, answer))
    print_lines(*problems(shown))


def cells_of(servers: Set) -> list[str]:
    """Return the cells of a row: names and states, and the costs of all of these servers."""
    listed_at = min((row["listed_at"] for row in servers if row["listed_at"]), default=None)
    due_at = min((row["next_reconcile_at"] for row in servers if row["next_reconcile_at"] is not None), default=None)
    is_entry = servers[0]["state"] == "left out"  # no server yet
    return [
        printable(_names(servers[0])) + (f" × {len(servers)}" if len(servers) > 1 else ""),
        _states(servers),
        thousands(_tools(servers)),
        thousands(_sum(servers, "tokens")),
        percent(_sum(servers, "share")),
        "" if is_entry else ago(listed_at),
        "" if is_entry else "when announced" if due_at is None else ahead(due_at),
    ]


def _names(row: Row) -> str:
    """Return the id of a server, and the name that its operator wrote, if it is another."""
    server_id: str = row["server_id"]
    name = row.get("name", server_id)  # a service of an earlier release has none
    return server_id if name == server_id else f"{server_id} ({name})"


def _states(servers: Set) -> str:
    """Return the state, or the number of servers in each, and the changed tools that no operator has accepted."""
    words = Counter(row["state"] for row in servers).most_common()
    states = words[0][0] if len(words) == 1 else ", ".join(f"{count} {word}" for word, count in words)
    failures = servers[0]["failures"] if len(servers) == 1 and servers[0]["is_failing"] else 0
    changed = sum(row["unaccepted"] for row in servers)
    tools = f", {changed:,} {'tool' if changed == 1 else 'tools'} changed" if changed else ""
    return states + (f" ({failures})" if failures else "") + tools


def _tools(servers: Set) -> int | None:
    """Return the number of tools of one of these servers, None if none can be found."""
    return max((row["tools"] for row in servers if row["tools"] is not None), default=None)


def _sum(servers: Set, name: str) -> Any:
    """Return the sum of a number over these servers, None if it is known of none."""
    known = [row[name] for row in servers if row[name] is not None]
    return sum(known) if known else None


def problems(shown: Iterable[Set]) -> list[str]:
    """Return a line for each row with an error: the first server with one, and its error or left-out entry."""
    lines: list[str] = []
    for servers in shown:
        if reason := servers[0].get("left_out"):
            lines.append(f"{servers[0]['server_id']}: its entry is left out: {reason}")
            continue
        errors = [(row["server_id"], error) for row in servers if (error := row["last_error"] or row["conflict"])]
        if errors:
            server, error = errors[0]
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            lines.append(f"{server}: {error.removeprefix(f'{server}: ')}{more}")
    return list(dict.fromkeys(map(printable, lines)))


def footer(known: Sequence[Set], answer: Row) -> list[str]:
    """Return the sums over all servers in lines: of replicas, states and changed tools, and of the backlog."""
    rows = [row for servers in known for row in servers if row["state"] != "left out"]
    lines: list[str] = []
    if any(len(servers) > 1 for servers in known):
        tools = sum(row["tools"] or 0 for row in rows)
        tokens = sum(row["tokens"] or 0 for row in rows)
        once = sum(_tools(servers) or 0 for servers in known)
        tokens_once = sum(max((row["tokens"] or 0 for row in servers), default=0) for servers in known)
        lines.append(f"{tools:,} tools, {tokens:,} tokens; without replicas {once:,} tools, {tokens_once:,} tokens")
    backlog = answer.get("backlog") or {"due": 0, "dead_letters": 0}
    counts = Counter(row["state"] for row in rows).most_common()
    states = ", ".join(f"{count:,} {word}" for word, count in counts)
    parts = [f"{len(rows):,} server{'' if len(rows) == 1 else 's'}: {states}"] if rows else []
    if backlog["due"]:
        parts.append(f"{backlog['due']:,} reconciliations due, the first for {span(backlog['overdue_s'])}")
    if backlog["dead_letters"]:
        parts.append(f"{backlog['dead_letters']:,} dead letters")
    if changed := [row["server_id"] for row in rows if row["unaccepted"]]:
        parts.append(f"changed tools on {len(changed):,}: `toolscale diff {printable(changed[0])}`")
    return [*lines, *(["; ".join(parts)] if parts else [])]


def _failure(row: Row) -> str:
    return printable(f"{row['state']} ({row['failures']}): {row['last_error']}")
