"""`toolscale import`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.quoting import printable
from shared.settings import Settings, load_settings
from toolscale.commands.connecting import YesOption
from toolscale.commands.moving import ClientMove, apply_moves, count, moves, print_others, print_savings, savings_of
from toolscale.commands.options import DataDirOption, JsonOption
from toolscale.console import err, out, print_json
from toolscale.importing.client_files import Client, ClientFile, client_files, known_or_named, this_machine
from toolscale.importing.find import find_servers
from toolscale.importing.merge import OnConflict, merge
from toolscale.importing.target import FILE_NAME, config_path, read_target, write_servers
from toolscale.importing.view import ImportPlan, as_object, diff, remarks

if TYPE_CHECKING:
    from toolscale.costs import CostReport


def import_servers(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="A client's file; none: those of all clients.", show_default=False),
    ] = None,
    client: Annotated[
        list[Client] | None, typer.Option("--from", help="This client's files; repeat it for several.")
    ] = None,
    project: Annotated[
        Path, typer.Option(help="Directory with a project's files.", show_default="here")
    ] = Path(),
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="The mcp.json to import into; default: TOOLSCALE_MCP_CONFIG, or the data directory.",
            show_default=False,
        ),
    ] = None,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="Action if a different server has the same name.")
    ] = "keep",
    apply: Annotated[bool, typer.Option("--apply", help="Write the file; without it nothing is written.")] = False,
    connect: Annotated[
        bool, typer.Option("--connect", help="Let the clients start Toolscale in place of these servers.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:  # fmt: skip
    """Import the servers of Claude, Cursor, VS Code and other clients; without --apply it only shows the changes.

    With --connect, the clients lose the servers that Toolscale has now, and start Toolscale instead.
    Then it lists all servers and shows the tokens before and after.
    """
    settings = load_settings(mcp_config=config, data_dir=data_dir)
    candidates = _client_files(files or [], client or [], project)
    plan = _plan(settings, candidates, on_conflict)
    moving, problems = moves(plan, settings) if connect else ([], [])
    writes = apply and plan.changes
    backup = write_servers(plan.target, plan.merged.servers, datetime.now(UTC)) if writes else None
    if not as_json:
        _print_plan(plan, candidates)
        if writes:
            _print_written(plan, backup, settings)
    moved = apply_moves(moving, is_confirmed=yes, writes=apply, console=err if as_json else out)
    for problem in problems:
        err.print(printable(problem), soft_wrap=True, highlight=False)
    report = (
        count(settings.model_copy(update={"mcp_config": plan.target.path}))
        if connect and apply and plan.merged.servers
        else None
    )
    if as_json:
        print_json(as_object(plan, applied=writes, backup=backup) | _connected(moved, report))
    elif report:
        written = [move for move, result in moved if result["written"]]
        print_others(written)
        print_savings(written, report)
    elif not apply and (plan.changes or moved):
        err.print("\nNothing was written; --apply does.")


def _connected(moved: list[tuple[ClientMove, dict[str, Any]]], report: CostReport | None) -> dict[str, Any]:
    """Return the clients and the savings as JSON; nothing without --connect."""
    if report is None:
        return {"clients": [result for _, result in moved]} if moved else {}
    return {
        "clients": [result | savings_of(move, report) for move, result in moved],
        "total": savings_of(None, report),
        "encoding": report.encoding,
    }


def _client_files(files: list[Path], clients: list[Client], project: Path) -> list[ClientFile]:
    machine, project = this_machine(), project.absolute()
    named = [known_or_named(file.absolute(), machine, project) for file in files]
    return named if files and not clients else [*named, *client_files(machine, project, clients or Client)]


def _plan(settings: Settings, candidates: list[ClientFile], on_conflict: OnConflict) -> ImportPlan:
    target = read_target(config_path(settings))
    findings = find_servers(candidates, this_machine(), settings)
    return ImportPlan(target, findings, merge(target.servers, findings.servers, on_conflict))


def _print_plan(plan: ImportPlan, candidates: list[ClientFile]) -> None:
    if not plan.findings.read:
        err.print("None of these files exists:", *(printable(str(file.path)) for file in candidates), sep="\n  ")
        return
    for line in diff(plan):
        out.print(line, soft_wrap=True)
    if plan.changes:
        out.print()
    for remark in remarks(plan):
        out.print(printable(remark), soft_wrap=True, highlight=False)
    if not plan.changes:
        out.print(f"{printable(str(plan.target.path))}: nothing to change.", soft_wrap=True, highlight=False)


def _print_written(plan: ImportPlan, backup: Path | None, settings: Settings) -> None:
    path = plan.target.path
    err.print(f"\nWritten: {printable(str(path))}", soft_wrap=True, highlight=False)
    if backup:
        lost = "; only it still has the comments" if plan.target.has_comments else ""
        err.print(f"Backup: {printable(str(backup))}{lost}", soft_wrap=True, highlight=False)
    served = "" if path == (settings.data_dir / FILE_NAME).resolve() else f" --config {printable(str(path))}"
    err.print(f"Serve it: toolscale serve{served}", soft_wrap=True, highlight=False)
