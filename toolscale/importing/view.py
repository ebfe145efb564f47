"""What an import would do, and did, for people and as JSON; no secret is in either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from rich.text import Text

from toolscale.console import plain
from toolscale.importing.entries import dumped
from toolscale.importing.find import Findings
from toolscale.importing.masking import masked, masked_servers
from toolscale.importing.merge import Became, Merged, Outcome
from toolscale.importing.target import TargetFile

_BECAME: Mapping[Became, str] = {
    "added": "{outcome.name}: added",
    "renamed": "{outcome.name}: added, renamed from {outcome.found.server_id}",
    "replaced": "{outcome.name}: replaced",
    "there already": "{outcome.name}: there already",
    "kept out": "{outcome.name}: another of this name stays; `--on-conflict rename` or `replace`",
}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Import:
    """An import into a file: what was found, and what it makes of the file."""

    target: TargetFile
    findings: Findings
    merged: Merged

    @property
    def changes(self) -> bool:
        """Return whether the file would be another."""
        return self.merged.servers != self.target.servers


def diff(found: Import) -> Iterator[Text]:
    """Yield the lines that change in the file, its secrets hidden."""
    key, path = found.target.key, str(found.target.path)
    before = dumped({key: masked_servers(found.target.servers, {})})
    after = dumped({key: masked_servers(found.merged.servers, found.target.servers)})
    lines = unified_diff(before.splitlines(), after.splitlines(), path, f"{path}, with what was found", lineterm="")
    for number, line in enumerate(lines):
        yield Text(plain(line), style="bold" if number < 2 else _STYLES.get(line[:1], ""))  # noqa: PLR2004  # the names


def remarks(found: Import) -> Iterator[str]:
    """Yield what became of each server and what cannot be taken over, a line for each."""
    for outcome in found.merged.outcomes:
        yield f"{_BECAME[outcome.became].format(outcome=outcome)} ({_origin(outcome)})"
        if outcome.found.unset:
            yield f"  not set here, needed where Toolscale runs: {', '.join(outcome.found.unset)}"
    for left_out in found.findings.left_out:
        yield f"cannot be taken over: {left_out.reason} ({left_out.place.title}, {left_out.place.path})"


def as_object(found: Import, *, applied: bool, backup: Path | None) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "target": str(found.target.path),
        "applied": applied,
        "backup": str(backup) if backup else None,
        "read": [str(place.path) for place in found.findings.read],
        "servers": [_server(outcome) for outcome in found.merged.outcomes],
        "left_out": [
            {"reason": each.reason, "client": each.place.client, "path": str(each.place.path)}
            for each in found.findings.left_out
        ],
    }


def _server(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "became": outcome.became.replace(" ", "_"),
        "found_as": outcome.found.server_id,
        "client": outcome.found.place.client,
        "path": str(outcome.found.place.path),
        "project": str(outcome.found.project) if outcome.found.project else None,
        "unset_variables": list(outcome.found.unset),
        "entry": masked(outcome.found.entry),
    }


def _origin(outcome: Outcome) -> str:
    place, project = outcome.found.place, outcome.found.project
    about = f", for {project}" if project and project not in place.path.parents else ""
    return f"{place.title}, {place.path}{about}"
