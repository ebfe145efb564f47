"""`toolscale savings` and `advice`: reports of a service on what it saved, and on what to offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.quoting import printable
from toolscale.client.service import open_service
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import number_table, out, print_json, thousands

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

Object = dict[str, Any]

SHOWN = 20


def savings(
    period: Annotated[str, typer.Argument(help="today, a number of days (7d), or a date; UTC.")] = "today",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show the tokens saved, net and gross, by day, and the use of servers and tools."""
    with open_service(url, token, data_dir) as service:
        report = service.get("/api/savings", period=period)
    if as_json:
        print_json(report)
    else:
        out.print(savings_view(report))


def advice(
    toolset: Annotated[str | None, typer.Option(help="A toolset; default: all tools.", show_default=False)] = None,
    budget: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="Limit of tokens, in place of the toolset's.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show which tools to offer directly and which to drop, from the calls of 30 days."""
    with open_service(url, token, data_dir) as service:
        found = service.get("/api/advice", toolset=toolset, budget=budget)
    if as_json:
        print_json(found)
    else:
        out.print(advice_view(found))


def savings_view(report: Object) -> Group:
    """Return the report as tables, without empty ones."""
    totals = report["totals"]
    sums = number_table(f"{report['first_day']} to {report['last_day']}, UTC", "")
    for name, value in (
        (f"net tokens saved, {report['profile']} profile", totals["net_tokens_saved"]),
        ("  contexts", totals["contexts"]),
        ("  tokens of all tools in them", totals["baseline_tokens"]),
        ("  less tokens of lists", totals["listed_tokens"]),
        ("  less tokens of answers", totals["answer_tokens"]),
        ("gross, as answers state, wire form", totals["tokens_saved"]),
        ("searches", totals["searches"]),
        ("  that found nothing", totals["found_nothing"]),
    ):
        sums.add_row(name, f"{value:,}")
    by_day = ("day", "net_tokens_saved", "tokens_saved", "searches")
    of_day, own = ("day", "servers", "tools", "tokens"), ("name", "answers", "tokens", "bytes")
    used = ("name", "shown", "calls", "failed_calls", "result_bytes")
    use_of = ("in answers", "calls", "failed", "result bytes")
    return _group(
        [sums, "", report["advice"]],
        _rows(report["by_day"], by_day, "day", "net tokens saved", "gross", "searches"),
        _rows(report["catalogue"], of_day, "day", "servers", "tools", "tokens of all tools"),
        _rows(report["own_tools"], own, "our tool", "answers", "tokens", "text bytes"),
        _rows(report["by_server"], used, "server", *use_of),
        _rows(report["by_tool"], used, "tool", *use_of),
    )


def advice_view(found: Object) -> Group:
    """Return the advice as sentences and a table, which names at most SHOWN tools to offer and SHOWN to drop."""
    offers = [tool for tool in found["tools"] if tool["verdict"] != "drop"]
    drops = [tool for tool in found["tools"] if tool["verdict"] == "drop"]
    table = number_table("tool", "tokens", "calls", "advice")
    for tool in (*offers[:SHOWN], *drops[:SHOWN]):
        table.add_row(printable(tool["name"]), thousands(tool["tokens"]), thousands(tool["calls"]), tool["verdict"])
    budget = f"Budget: {found['budget_tokens']:,} tokens; {found['encoding']}, {found['profile']} profile."
    return _group([*map(printable, found["sentences"]), budget], table)


def _rows(of: Sequence[Object], names: Sequence[str], *titles: str) -> Table:
    """Return a table of these objects; the first of the names is that of a text, and the others of numbers."""
    table = number_table(*titles)
    for each in of:
        table.add_row(printable(str(each[names[0]])), *(thousands(each[name]) for name in names[1:]))
    return table


def _group(head: Sequence[str | Table], *tables: Table) -> Group:
    from rich.console import Group  # noqa: PLC0415

    return Group(*head, *(part for table in tables if table.row_count for part in ("", table)))
