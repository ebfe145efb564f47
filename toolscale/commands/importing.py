"""`toolscale import`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shared.settings import Settings, load_settings
from toolscale.console import DataDirOption, JsonOption, err, out, plain, print_json
from toolscale.importing.client_files import Client, Place, named_place, places, this_machine
from toolscale.importing.find import find_servers
from toolscale.importing.merge import OnConflict, merge
from toolscale.importing.target import FILE_NAME, read_target, write_servers
from toolscale.importing.view import Import, as_object, diff, remarks


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
            "--config", "-c", help="The mcp.json to import into; default: TOOLSCALE_CONFIG, or the data directory's.",
            show_default=False,
        ),
    ] = None,
    on_conflict: Annotated[
        OnConflict, typer.Option(help="Action if a different server has the same name.")
    ] = "keep",
    apply: Annotated[bool, typer.Option("--apply", help="Write the file; without it nothing is written.")] = False,
    as_json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:  # fmt: skip
    """Import the servers of Claude, Cursor and VS Code; without --apply it only shows the changes."""
    settings = load_settings(config=config, data_dir=data_dir)
    looked_at = _places(files or [], client or [], project)
    found = _found(settings, looked_at, on_conflict)
    writes = apply and found.changes
    backup = write_servers(found.target, found.merged.servers, datetime.now(UTC)) if writes else None
    if as_json:
        print_json(as_object(found, applied=writes, backup=backup))
        return
    _tell(found, looked_at)
    if writes:
        _tell_written(found, backup, settings)
    elif found.changes:
        err.print("\nNothing was written; --apply does.")


def _places(files: list[Path], clients: list[Client], project: Path) -> list[Place]:
    if files and not clients:
        return [named_place(file.absolute()) for file in files]
    found = places(this_machine(), project.absolute(), clients or Client)
    return [*(named_place(file.absolute()) for file in files), *found]


def _found(settings: Settings, looked_at: list[Place], on_conflict: OnConflict) -> Import:
    target = read_target(settings.config or settings.data_dir / FILE_NAME)
    findings = find_servers(looked_at, this_machine(), settings)
    return Import(target, findings, merge(target.servers, findings.servers, on_conflict))


def _tell(found: Import, looked_at: list[Place]) -> None:
    if not found.findings.read:
        err.print("None of these files exists:", *(plain(str(place.path)) for place in looked_at), sep="\n  ")
        return
    for line in diff(found):
        out.print(line, soft_wrap=True)
    if found.changes:
        out.print()
    for remark in remarks(found):
        out.print(plain(remark), soft_wrap=True, highlight=False)
    if not found.changes:
        out.print(f"{plain(str(found.target.path))}: nothing to change.", soft_wrap=True, highlight=False)


def _tell_written(found: Import, backup: Path | None, settings: Settings) -> None:
    path = found.target.path
    err.print(f"\nWritten: {plain(str(path))}", soft_wrap=True, highlight=False)
    if backup:
        lost = "; its comments are in there alone now" if found.target.has_comments else ""
        err.print(f"Backup: {plain(str(backup))}{lost}", soft_wrap=True, highlight=False)
    served = "" if path == (settings.data_dir / FILE_NAME).resolve() else f" --config {plain(str(path))}"
    err.print(f"Serve it: toolscale serve{served}", soft_wrap=True, highlight=False)
