"""`toolscale savings` and `advice`: reports of a service on what it saved, and on what to offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from shared.quoting import printable
from toolscale.client.service import open_service
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import number_columns, out, print_json, print_table, thousands

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
        print_savings(report)


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
        _print_advice(found)


def print_savings(report: Object) -> None:
    """Print the report as tables, without empty ones."""
    totals = report["totals"]
    sums = (
        (f"net tokens saved, {report['profile']} profile", "net_tokens_saved"),
        ("  contexts", "contexts"),
        ("  tokens of all tools in them", "baseline_tokens"),
        ("  less tokens of lists", "listed_tokens"),
        ("  less tokens of answers", "answer_tokens"),
        ("gross, as answers state, wire form", "tokens_saved"),
        ("searches", "searches"),
        ("  that found nothing", "found_nothing"),
        ("results of the calls of scripts, tokens", "inner_tokens"),
        ("  that entered no context", "tokens_kept_out"),
    )
    columns = number_columns(f"{report['first_day']} to {report['last_day']}, UTC", "")
    print_table(columns, [(title, thousands(totals[name])) for title, name in sums])
    out.print(f"\n{report['advice']}")
    by_day = ("day", "net_tokens_saved", "tokens_saved", "searches")
    of_day, own = ("day", "servers", "tools", "tokens"), ("name", "answers", "tokens", "bytes")
    used = ("name", "shown", "calls", "failed_calls", "result_bytes")
    use_of = ("in answers", "calls", "failed", "result bytes")
    _print_rows(report["by_day"], by_day, "day", "net tokens saved", "gross", "searches")
    _print_rows(report["catalogue"], of_day, "day", "servers", "tools", "tokens of all tools")
    _print_rows(report["own_tools"], own, "our tool", "answers", "tokens", "text bytes")
    _print_rows(report["by_server"], used, "server", *use_of)
    _print_rows(report["by_tool"], used, "tool", *use_of)


def _print_rows(of: Sequence[Object], names: Sequence[str], *titles: str) -> None:
    """Print a table of these objects, if there are any; the first name is that of a text, the others of numbers."""
    if of:
        rows = [(printable(str(each[names[0]])), *(thousands(each[name]) for name in names[1:])) for each in of]
        out.print()
        print_table(number_columns(*titles), rows)


def _print_advice(found: Object) -> None:
    """Print the advice as sentences and a table, which names at most SHOWN tools to offer and SHOWN to drop."""
    out.print(*map(printable, found["sentences"]), sep="\n")
    out.print(f"Budget: {found['budget_tokens']:,} tokens; {found['encoding']}, {found['profile']} profile.")
    offers = [tool for tool in found["tools"] if tool["verdict"] != "drop"][:SHOWN]
    drops = [tool for tool in found["tools"] if tool["verdict"] == "drop"][:SHOWN]
    rows = [
        (printable(tool["name"]), thousands(tool["tokens"]), thousands(tool["calls"]), tool["verdict"])
        for tool in (*offers, *drops)
    ]
    if rows:
        out.print()
        print_table(number_columns("tool", "tokens", "calls", "advice"), rows)
