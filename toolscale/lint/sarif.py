"""Findings as SARIF 2.1.0, the form of static analysis results that code scanning reads."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from shared.quoting import encodable
from toolscale.lint.findings import RULES, Finding
from toolscale.lint.report import LintReport

VERSION = "2.1.0"
# A program has a zero among its first bytes.
_HEAD = 1024
SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


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
        "partialFingerprints": {"primaryLocationLineHash": _fingerprint(finding.rule, name)},
    }


def _fingerprint(rule: str, name: str) -> str:
    return hashlib.sha256(f"{rule}\0{name}".encode("utf-8", "replace")).hexdigest()[:16]


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
