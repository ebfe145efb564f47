"""The plan of an import as text and as JSON, both without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from rich.text import Text

from shared.quoting import printable
from shared.upstream.masking import masked, masked_servers
from toolscale.importing.entries import dumped
from toolscale.importing.find import FoundServers
from toolscale.importing.merge import Became, Merged, MergeOutcome
from toolscale.importing.target import TargetFile

_BECAME: Mapping[Became, str] = {
    "added": "{outcome.name}: added",
    "renamed": "{outcome.name}: added, renamed from {outcome.server.server_id}",
    "replaced": "{outcome.name}: replaced",
    "there already": "{outcome.name}: there already",
    "kept out": "{outcome.name}: another server has this name; use `--on-conflict rename` or `replace`",
}
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """An import into a file: the servers found, and the merged file."""

    target: TargetFile
    findings: FoundServers
    merged: Merged

    @property
    def changes(self) -> bool:
        """Return whether the import changes the file."""
        return self.merged.servers != self.target.servers


def diff(plan: ImportPlan) -> Iterator[Text]:
    """Yield the changed lines of the file, with masked secrets."""
    key, path = plan.target.key, str(plan.target.path)
    before = dumped({key: masked_servers(plan.target.servers, {})})
    after = dumped({key: masked_servers(plan.merged.servers, plan.target.servers)})
    yield from difference(before, after, path)


def difference(before: str, after: str, path: str) -> Iterator[Text]:
    """Yield the changed lines of a file."""
    lines = unified_diff(before.splitlines(), after.splitlines(), path, f"{path}, changed", lineterm="")
    for number, line in enumerate(lines):
        yield Text(printable(line), style="bold" if number < 2 else _STYLES.get(line[:1], ""))  # noqa: PLR2004  # the names


def remarks(plan: ImportPlan) -> Iterator[str]:
    """Yield a line for each server found and for each entry that cannot be imported."""
    for outcome in plan.merged.outcomes:
        yield f"{_BECAME[outcome.became].format(outcome=outcome)} ({_origin(outcome)})"
        if outcome.server.unset:
            yield f"  not set here, required where Toolscale runs: {', '.join(outcome.server.unset)}"
    for left_out in plan.findings.skipped:
        yield f"cannot be imported: {left_out.reason} ({left_out.file.title}, {left_out.file.path})"


def as_object(plan: ImportPlan, *, applied: bool, backup: Path | None) -> dict[str, Any]:
    """Return the same as JSON."""
    return {
        "target": str(plan.target.path),
        "applied": applied,
        "backup": str(backup) if backup else None,
        "read": [str(file.path) for file in plan.findings.read],
        "servers": [_server(outcome) for outcome in plan.merged.outcomes],
        "left_out": [
            {"reason": skipped.reason, "client": skipped.file.client, "path": str(skipped.file.path)}
            for skipped in plan.findings.skipped
        ],
    }


def _server(outcome: MergeOutcome) -> dict[str, Any]:
    return {
        "name": outcome.name,
        "became": outcome.became.replace(" ", "_"),
        "found_as": outcome.server.server_id,
        "client": outcome.server.file.client,
        "path": str(outcome.server.file.path),
        "project": str(outcome.server.project) if outcome.server.project else None,
        "unset_variables": list(outcome.server.unset),
        "entry": masked(outcome.server.entry),
    }


def _origin(outcome: MergeOutcome) -> str:
    file, project = outcome.server.file, outcome.server.project
    about = f", for {project}" if project and project not in file.path.parents else ""
    return f"{file.title}, {file.path}{about}"
