"""`toolscale import --connect`: clients start Toolscale in place of the servers that it has now."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.errors import ConfigInvalid
from shared.quoting import printable
from shared.text.tokens import PROFILE
from toolscale.commands.connecting import apply_plan, connection_of
from toolscale.connecting.plan import ConnectionPlan, connecting
from toolscale.connecting.targets import file_of
from toolscale.console import err, number_table, out, thousands
from toolscale.importing.client_files import TITLES, Client, this_machine

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shared.settings import Settings
    from toolscale.costs import CostReport
    from toolscale.importing.merge import MergeOutcome
    from toolscale.importing.view import ImportPlan


@dataclass(frozen=True, slots=True)
class ClientMove:
    """A client's change: all its servers before, and those that stay, both by their names in the `mcp.json`.

    `others` are servers of the client that are not in the `mcp.json`.
    """

    plan: ConnectionPlan
    before: tuple[str, ...]
    staying: tuple[str, ...]
    others: tuple[str, ...]


def moves(imported: ImportPlan, settings: Settings) -> tuple[list[ClientMove], list[str]]:
    """Return the change of each client of which the user's own files have servers, and the reasons against others."""
    by_client: dict[Client, list[MergeOutcome]] = {}
    for outcome in imported.merged.outcomes:
        if outcome.server.file.client and outcome.server.project is None:
            by_client.setdefault(outcome.server.file.client, []).append(outcome)
    found, problems = list[ClientMove](), list[str]()
    for client, outcomes in by_client.items():
        try:
            found.append(_move(client, outcomes, imported, settings))
        except ConfigInvalid as error:
            problems.append(f"{TITLES[client]} is not connected: {error}")
    return found, problems


def _move(client: Client, outcomes: Sequence[MergeOutcome], imported: ImportPlan, settings: Settings) -> ClientMove:
    machine = this_machine()
    path = file_of(client, machine)
    kept_out = {outcome.server.server_id for outcome in outcomes if outcome.became == "kept out"}
    moved = {
        outcome.server.server_id for outcome in outcomes if outcome.server.file.path.resolve() == path
    } - kept_out  # fmt: skip
    stay = {outcome.name for outcome in outcomes if outcome.server.server_id not in moved | kept_out}
    skipped = (
        each.reason.partition(":")[0]
        for each in imported.findings.skipped
        if each.file.client is client and each.file.project is None
    )
    return ClientMove(
        connecting(client, connection_of(settings, None), machine, moved),
        tuple(sorted({outcome.name for outcome in outcomes if outcome.became != "kept out"})),
        tuple(sorted(stay)),
        tuple(sorted(kept_out | {name for name in skipped if name != "toolscale"})),
    )


def apply_moves(
    found: Iterable[ClientMove], *, is_confirmed: bool, writes: bool, console: Console
) -> list[tuple[ClientMove, dict[str, Any]]]:
    """Show each change, write those that are confirmed, and return the results as JSON."""
    return [(move, apply_plan(move.plan, is_confirmed=is_confirmed, console=console, writes=writes)) for move in found]


def count(settings: Settings) -> CostReport:
    """List the servers of the `mcp.json` and return the costs of their tools."""
    from toolscale.commands.costs import report_of  # noqa: PLC0415  # loads both sides

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: ends every server
    return report_of(settings)


def print_savings(written: Iterable[ClientMove], report: CostReport) -> None:
    """Print the tools and tokens of each client, before and after, and the servers that could not be counted."""
    for server in report.servers:
        if server.problem:
            counted = "" if server.cost else "not counted: "
            out.print(f"{printable(server.server_id)}: {counted}{printable(server.problem)}", highlight=False)
    table: Table = number_table("client", "tools", "tokens before", "tokens after")
    for title, numbers in _rows(written, report):
        table.add_row(title, *map(thousands, numbers))
    out.print(table)


def print_others(written: Iterable[ClientMove]) -> None:
    """Name the servers that clients keep."""
    for move in written:
        if stays := (*move.staying, *move.others):
            err.print(f"{move.plan.title} keeps {printable(', '.join(stays))}.", highlight=False, soft_wrap=True)


def savings_of(move: ClientMove | None, report: CostReport) -> dict[str, int]:
    """Return the tools of a client before, and the tokens before and after; None stands for all servers."""
    costs = {server.server_id: server.cost for server in report.servers if server.cost}
    before = costs.keys() if move is None else costs.keys() & set(move.before)
    staying = set[str]() if move is None else costs.keys() & set(move.staying)
    tokens: Callable[[Iterable[str]], int] = lambda names: sum(costs[name].tokens[PROFILE] for name in names)  # noqa: E731
    return {
        "tools": sum(costs[name].tools for name in before),
        "tokens_before": tokens(before),
        "tokens_after": report.own.tokens[PROFILE] + tokens(staying),
    }


def _rows(written: Iterable[ClientMove], report: CostReport) -> Iterator[tuple[str, tuple[int, ...]]]:
    for move in written:
        yield move.plan.title, tuple(savings_of(move, report).values())
    yield "all servers", tuple(savings_of(None, report).values())
