"""The costs of servers as tables and as JSON, each with the cost of Toolscale's own tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table

from shared.quoting import printable
from shared.text.tokens import PROFILE, is_estimate
from toolscale.console import number_table, percent, thousands
from toolscale.costs.counting import COLUMNS, Cost, total_of
from toolscale.costs.listing import ServerCost

if TYPE_CHECKING:
    from shared.catalog import Encoding


@dataclass(frozen=True, slots=True)
class CostReport:
    """The cost of each server of some files, and of Toolscale itself."""

    encoding: Encoding
    files: tuple[Path, ...]
    servers: Sequence[ServerCost]
    own: Cost

    @property
    def total(self) -> Cost:
        """Return the cost of all listed servers."""
        return total_of(server.cost for server in self.servers if server.cost)

    @property
    def is_of_any(self) -> bool:
        """Return whether a server could be listed."""
        return any(server.cost for server in self.servers)


def as_object(report: CostReport) -> dict[str, Any]:
    """Return the report as JSON; a server that could not be listed has null tools and tokens."""
    return {
        "encoding": report.encoding,
        "estimated": is_estimate(report.encoding),
        "files": [str(file) for file in report.files],
        "servers": [_server(server) for server in report.servers],
        "total": asdict(report.total),
        "toolscale": asdict(report.own),
    }


def _server(server: ServerCost) -> dict[str, Any]:
    cost = asdict(server.cost) if server.cost else {"tools": None, "tokens": None, "uncounted": None}
    return {"server_id": server.server_id, **cost, "problem": server.problem}


def view(report: CostReport) -> Group:
    """Return the costs with the comparison, and the problems; each only if there is any."""
    parts: list[Table | str] = [_costs(report), "", comparison(report)] if report.is_of_any else []
    if any(server.problem for server in report.servers):
        parts += ["", *_problems(report.servers)] if parts else _problems(report.servers)
    return Group(*parts)


def comparison(report: CostReport) -> str:
    """Return the cost of Toolscale's own tools beside the total, as a sentence."""
    own, total = report.own.tokens[PROFILE], report.total.tokens[PROFILE]
    unit = f"{report.encoding}, an estimate" if is_estimate(report.encoding) else report.encoding
    share = f", {percent(abs(1 - own / total))} {'less' if own <= total else 'more'}" if total else ""
    return (
        f"Toolscale in their place lists {report.own.tools} tools: {own:,} tokens against {total:,}{share} "
        f"({PROFILE} profile, {unit}); each search adds its answer."
    )


def _costs(report: CostReport) -> Table:
    shown = number_table("server", "tools", *COLUMNS)
    for server in report.servers:
        if server.cost:
            shown.add_row(printable(server.server_id), *_figures(server.cost))
    shown.add_row("total", *_figures(report.total), style="bold")
    return shown


def _problems(servers: Iterable[ServerCost]) -> list[str]:
    """Return a line for each server with a problem."""
    return [
        f"{printable(server.server_id)}: {'' if server.cost else 'not listed: '}{printable(server.problem)}"
        for server in servers
        if server.problem
    ]


def _figures(cost: Cost) -> list[str]:
    return [thousands(number) for number in (cost.tools, *(cost.tokens[column] for column in COLUMNS))]
