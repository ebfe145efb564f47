"""The result of the demo as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from toolscale.console import out
from toolscale.demo.demo import Answered, DemoServerResult, Report


def print_report(report: Report) -> None:
    """Print the servers, and for each query the tools found and the tokens saved."""
    out.print(_servers(report))
    for server in report.servers:
        if server.error:
            out.print(f"{server.server}: {server.error}", highlight=False, soft_wrap=True)
    out.print(_answers(report))
    out.print(
        f"{report.tools} tools of {len(report.servers)} servers, ingested in {report.ingestion_s:.1f} s. "
        f"A client that loads all tools pays {report.tokens:,} tokens ({report.encoding}, {report.profile} profile; "
        f"{report.wire_tokens:,} in the wire form); with find_tool it pays for the tools that it needs.",
        highlight=False,
    )


def _servers(report: Report) -> Table:
    table = Table("server", "declares itself", "protocol", title="Servers", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("tools", "tokens", "wire"):
        table.add_column(heading, justify="right", no_wrap=True)
    for server in report.servers:
        table.add_row(server.server, server.declared_name, server.protocol_version or "", *_sizes(server))
    table.add_section()
    table.add_row("all", "", "", *_sizes(report))
    return table


def _sizes(of: DemoServerResult | Report) -> tuple[str, str, str]:
    return str(of.tools), f"{of.tokens:,}", f"{of.wire_tokens:,}"


def _answers(report: Report) -> Table:
    table = Table(title="find_tool over MCP, in tokens of the wire form", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("query, and the tools found, best first")
    for heading in ("returned", "saved", "%", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    for asked in report.answers:
        table.add_row("\n  ".join((asked.question, *_found(asked.answer))), *_figures(asked))
        table.add_section()
    return table


def _found(answer: Mapping[str, Any]) -> list[str]:
    if answer.get("no_match"):
        return [f"no tool fits; the nearest is {answer['nearest'][0]}"]
    return [tool["name"] for tool in answer["tools"]]


def _figures(asked: Answered) -> list[str]:
    """Return the tokens returned and saved, and the duration; empty tokens without a match."""
    metrics, took_ms = asked.answer["token_metrics"], f"{asked.took_ms:.0f}"
    if not asked.answer["tools"]:
        return ["", "", "", took_ms]
    saved, share = f"{metrics['tokens_saved']:,}", f"{metrics['savings_percentage']:.1f}"
    return [f"{metrics['returned_tokens']:,}", saved, share, took_ms]
