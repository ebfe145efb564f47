"""`toolscale backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.quoting import printable
from shared.settings import load_settings
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import err, out, print_json

BackupArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the backup.", show_default=False)]

UNITS = {
    "definitions": "servers' definitions",
    "servers": "servers",
    "toolsets": "toolsets",
    "savings": "rows of savings",
    "catalogue_sizes": "sizes of the catalogue by day",
}


def backup(
    directory: BackupArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write servers, accepted definitions, toolsets and savings into a new directory, as lines of JSON."""
    from toolscale.client.backup import write_backup  # noqa: PLC0415  # loads both sides
    from toolscale.client.toolsets import open_toolsets  # noqa: PLC0415

    settings = load_settings(data_dir=data_dir)
    with err.status("Writing the backup ..."), open_toolsets(settings, url, token) as toolsets:
        manifest = write_backup(settings, directory, toolsets)
    if as_json:
        print_json(manifest.model_dump(mode="json"))
        return
    numbers = ", ".join(f"{count:,} {UNITS[kind]}" for kind, count in manifest.lines.items())
    out.print(f"{printable(str(directory))}: {numbers}", highlight=False, soft_wrap=True)


def restore(
    directory: BackupArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Add what is missing from a backup; everything that is there stays as it is.

    It may be repeated. The workers, or `toolscale serve`, then list the restored servers.
    """
    from toolscale.client.backup import read_backup, restore_backup  # noqa: PLC0415  # loads both sides
    from toolscale.client.toolsets import open_toolsets  # noqa: PLC0415

    settings, found = load_settings(data_dir=data_dir), read_backup(directory)
    with err.status("Restoring ..."), open_toolsets(settings, url, token) as toolsets:
        results = restore_backup(settings, found, toolsets)
    if as_json:
        print_json({kind: result._asdict() for kind, result in results.items()})
        return
    for kind, result in results.items():
        present = f", {result.present:,} were there already" if result.present else ""
        out.print(f"{UNITS[kind]}: {result.added:,} added{present}", highlight=False)
