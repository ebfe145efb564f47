"""A report of lint as tables and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from shared.quoting import printable
from shared.text.tokens import DESCRIPTION, NAME, PROFILE
from toolscale.console import number_table, thousands
from toolscale.lint.findings import LEVELS, Finding
from toolscale.lint.report import LintReport
from toolscale.lint.sizes import corpus


def as_object(report: LintReport) -> dict[str, Any]:
    """Return the report as JSON, with the tokens of each part of each tool."""
    tools = [
        {"name": name, "tokens": sum(parts.values()), "parts": {field.key: tokens for field, tokens in parts.items()}}
        for name, parts in report.tokens.items()
    ]
    return {
        "server": report.server,
        "encoding": corpus().encoding,
        "profile": PROFILE,
        "tokens": report.total,
        "tools": tools,
        "leaner_by": sum(each.saved for each in report.shorter),
        "findings": [asdict(finding) for finding in report.findings],
        "corpus": corpus().model_dump(),
    }


def shorter_as_object(report: LintReport) -> list[dict[str, Any]]:
    """Return the tools that have a shorter definition, with it, as in `tools/list`."""
    return [each.definition.as_object() for each in report.shorter if each.saved]


def removed_sentences(report: LintReport) -> list[str]:
    """Return the sentences that the shorter definitions lack, each once."""
    return list(dict.fromkeys(sentence for each in report.shorter for sentence in each.sentences))


def view(report: LintReport) -> Group:
    """Return the tokens by tool, the largest first, the findings, and a summary."""
    parts: list[Table | str] = [_tools(report), ""] if report.tokens else []
    if report.findings:
        parts += [_findings(report), ""]
    return Group(*parts, summary(report))


def summary(report: LintReport) -> str:
    """Return the number of tools and of findings by level, and the size of the corpus, in two sentences."""
    by_level = Counter(finding.level for finding in report.findings)
    found = ", ".join(f"{by_level[level]} {level}s" for level in reversed(LEVELS))
    size = f"{len(report.tokens)} tools, {report.total:,} tokens ({PROFILE} profile, {corpus().encoding})"
    return f"{size}: {found}. Sizes are compared with {corpus()}."


def _tools(report: LintReport) -> Table:
    table = number_table("tool", "tokens", "name", "description", "parameters", "rest")
    table.add_column("largest parameter", overflow="fold")
    for name, parts in sorted(report.tokens.items(), key=lambda tool: (-sum(tool[1].values()), tool[0])):
        parameters = {field.name: tokens for field, tokens in parts.items() if field.is_parameter}
        total, of_parameters = sum(parts.values()), sum(parameters.values())
        named, described = parts.get(NAME, 0), parts.get(DESCRIPTION, 0)
        figures = total, named, described, of_parameters, total - named - described - of_parameters
        table.add_row(printable(name), *map(thousands, figures), _largest(parameters))
    return table


def _largest(parameters: Mapping[str, int]) -> str:
    if not parameters:
        return ""
    name = max(parameters, key=lambda name: parameters[name])
    return f"{printable(name)} ({parameters[name]:,})"


def _findings(report: LintReport) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("level", no_wrap=True)
    table.add_column("tool", overflow="fold")
    table.add_column("rule", no_wrap=True)
    table.add_column("finding", overflow="fold")
    for finding in report.findings:
        table.add_row(*_cells(finding))
    return table


def _cells(finding: Finding) -> tuple[str, ...]:
    return finding.level, finding.place, finding.rule, printable(finding.message)
