"""The demo's findings as tables for people."""

from __future__ import annotations

from rich.table import Table

from toolscale.console import out
from toolscale.demo import Report


def print_report(report: Report) -> None:
    """Print what was ingested, and for each question the tools found and what that saved."""
    out.print(_servers(report))
    out.print(_answers(report))
    out.print(
        f"{report.tools} tools of {len(report.servers)} servers in {report.ingestion_s:.1f} s. "
        f"Listing them all costs {report.tokens:,} tokens ({report.encoding}) in every conversation."
    )


def _servers(report: Report) -> Table:
    table = Table("server", "declares itself", "protocol", title="Servers", title_justify="left")
    table.add_column("tools", justify="right")
    table.add_column("tokens", justify="right")
    for server in report.servers:
        table.add_row(
            server.server,
            server.error or server.declared_name,
            server.protocol_version or "",
            str(server.tools),
            f"{server.tokens:,}",
        )
    table.add_section()
    table.add_row("all", "", "", str(report.tools), f"{report.tokens:,}")
    return table


def _answers(report: Report) -> Table:
    table = Table("question", "tools found", title="find_tool, asked over MCP", title_justify="left")
    for heading in ("baseline", "returned", "saved", "%", "ms"):
        table.add_column(heading, justify="right")
    for asked in report.answers:
        metrics = asked.answer["token_metrics"]
        table.add_row(
            asked.question,
            "\n".join(f"{tool['server']}:{tool['name']}" for tool in asked.answer["tools"]),
            f"{metrics['baseline_tokens']:,}",
            f"{metrics['returned_tokens']:,}",
            f"{metrics['tokens_saved']:,}",
            f"{metrics['savings_percentage']:.1f}",
            f"{asked.took_ms:.0f}",
        )
    return table
