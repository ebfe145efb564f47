"""A report of lint as tables, as JSON, and as SARIF 2.1.0, which code scanning reads."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.text import Text

from shared.quoting import encodable, printable
from shared.text.tokens import DESCRIPTION, NAME, PROFILE
from toolscale.console import Column, number_columns, out, print_lines, print_table, thousands
from toolscale.lint.findings import LEVELS, RULES, Finding
from toolscale.lint.rules import LintReport, corpus

# Columns of a terminal, up to which a finding has a line in place of a row.
_NARROW = 100

VERSION = "2.1.0"
# A program has a zero among its first bytes.
_HEAD = 1024
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


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


def print_report(report: LintReport) -> None:
    """Print the tokens by tool, the largest first, the findings, and a summary."""
    tools: list[list[str]] = []
    for name, parts in sorted(report.tokens.items(), key=lambda tool: (-sum(tool[1].values()), tool[0])):
        parameters = {field.name: tokens for field, tokens in parts.items() if field.is_parameter}
        total, of_parameters = sum(parts.values()), sum(parameters.values())
        named, described = parts.get(NAME, 0), parts.get(DESCRIPTION, 0)
        figures = total, named, described, of_parameters, total - named - described - of_parameters
        largest = max(parameters, key=lambda name: parameters[name], default=None)
        shown = "" if largest is None else f"{printable(largest)} ({parameters[largest]:,})"
        tools.append([printable(name), *map(thousands, figures), shown])
    if tools:
        columns = number_columns("tool", "tokens", "name", "description", "parameters", "rest")
        print_table((*columns, Column("largest parameter")), tools)
        out.print()
    if report.findings:
        if out.width > _NARROW:
            findings = [(each.level, each.place, each.rule, printable(each.message)) for each in report.findings]
            print_table(tuple(map(Column, ("level", "tool", "rule", "finding"))), findings)
        else:  # columns would fold each finding over several lines
            for each in report.findings:
                line = Text(f"{each.level} {each.place} {each.rule}: {printable(each.message)}")
                line.truncate(out.width, overflow="ellipsis")
                print_lines(line)
        out.print()
        by_rule = Counter(finding.rule for finding in report.findings).most_common()
        print_table(number_columns("rule", "findings"), [(rule, thousands(count)) for rule, count in by_rule])
        out.print()
    out.print(summary(report))


def summary(report: LintReport) -> str:
    """Return the number of tools and of findings by level, and the size of the corpus, in two sentences."""
    by_level = Counter(finding.level for finding in report.findings)
    found = ", ".join(f"{by_level[level]} {level}s" for level in reversed(LEVELS))
    size = f"{len(report.tokens)} tools, {report.total:,} tokens ({PROFILE} profile, {corpus().encoding})"
    return f"{size}: {found}. Sizes are compared with {corpus()}."


def as_sarif(report: LintReport, source: str) -> dict[str, Any]:
    """Return the log of a run; `source` is the file that all findings name, relative to the repository.

    A definition has no line in that file, so a finding names its first line, and the tool as a logical location.
    """
    rules = [
        {"id": rule, "shortDescription": {"text": meaning}, "defaultConfiguration": {"level": level}}
        for rule, (level, meaning) in RULES.items()
    ]
    driver = {"name": "toolscale lint", "version": importlib.metadata.version("toolscale"), "rules": rules}
    results = [_result(report.server, finding, source) for finding in report.findings]
    return {"$schema": SCHEMA, "version": VERSION, "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(server: str, finding: Finding, source: str) -> dict[str, Any]:
    name = "/".join(filter(None, (server, finding.tool, finding.parameter)))
    kind = "function" if finding.parameter is None else "parameter"
    fingerprint = hashlib.sha256(f"{finding.rule}\0{name}".encode("utf-8", "replace")).hexdigest()
    return {
        "ruleId": finding.rule,
        "ruleIndex": list(RULES).index(finding.rule),
        "level": finding.level,
        "message": {"text": f"{finding.place}: {encodable(finding.message)}"},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": quote(source)}, "region": {"startLine": 1}},
                "logicalLocations": [{"fullyQualifiedName": encodable(name), "kind": kind}],
            }
        ],
        # code scanning would take findings on one line for the same one
        "partialFingerprints": {"primaryLocationLineHash": fingerprint[:16]},
    }


def first_file(command: Sequence[str]) -> str | None:
    """Return the first file of text that a command names in the working directory, relative to it; None without one.

    An interpreter is no text, and the files of a virtual environment are not the server's own.
    """
    return next(filter(None, map(in_tree, command)), None)


def in_tree(name: str | Path) -> str | None:
    """Return the path of a file of text relative to the working directory; None where it is not one, or elsewhere."""
    try:
        path = Path(name).resolve()
        is_own = path.is_relative_to(Path.cwd()) and not (path.parent.parent / "pyvenv.cfg").exists()
        return path.relative_to(Path.cwd()).as_posix() if is_own and path.is_file() and _is_text(path) else None
    except OSError:  # a word that is no path
        return None


def _is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(_HEAD)
