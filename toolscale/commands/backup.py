"""`toolscale backup` and `restore`: a directory with a file of JSON lines for each kind of document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from shared.errors import BackupInvalid
from shared.quoting import printable
from toolscale.client.service import open_operations
from toolscale.commands.options import DataDirOption, JsonOption, TokenOption, UrlOption
from toolscale.console import print_json, print_lines, working

if TYPE_CHECKING:
    from query.backup import Kind

BackupArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the backup.", show_default=False)]

MANIFEST = "backup.json"
"""Written last: the time of the backup, and the number of lines of each kind."""
PART_BYTES = 4 << 20
"""Of one request to the service."""
UNITS: dict[Kind, str] = {
    "definitions": "servers' definitions",
    "servers": "servers",
    "toolsets": "toolsets",
    "savings": "rows of savings",
    "catalogue_sizes": "sizes of the catalogue by day",
}

Object = dict[str, Any]


def backup(
    directory: BackupArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write servers, accepted definitions, toolsets and savings into a new directory, as lines of JSON."""
    from shared.service.files import write_private  # noqa: PLC0415

    lines: dict[Kind, int] = {}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BackupInvalid(f"{directory} is not empty; name a new directory")
        with working("Writing the backup ..."), open_operations(url, token, data_dir) as operations:
            for kind in UNITS:
                # in ASCII: texts of servers may have lone surrogates
                documents = [json.dumps(document) + "\n" for document in operations.backup(kind)]
                write_private(_file(directory, kind), "".join(documents))
                lines[kind] = len(documents)
        manifest = {"version": 1, "created_at": datetime.now(UTC).isoformat(), "lines": lines}
        write_private(directory / MANIFEST, json.dumps(manifest) + "\n")
    except OSError as error:
        raise BackupInvalid(f"{directory} cannot be written: {error.strerror or error}") from error
    if as_json:
        print_json(manifest)
        return
    numbers = ", ".join(f"{count:,} {UNITS[kind]}" for kind, count in lines.items())
    print_lines(f"{printable(str(directory))}: {numbers}")


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
    content = read_backup(directory)
    results: dict[Kind, Object] = {}
    with working("Restoring ..."), open_operations(url, token, data_dir) as operations:
        for kind, documents in content.items():
            results[kind] = {"added": 0, "present": 0}
            for part in _parts(documents):
                restored = operations.restore(kind, part)
                results[kind] = {name: count + restored[name] for name, count in results[kind].items()}
    if as_json:
        print_json(results)
        return
    for name, result in results.items():
        present = f", {result['present']:,} were there already" if result["present"] else ""
        print_lines(f"{UNITS[name]}: {result['added']:,} added{present}")


def read_backup(directory: Path) -> dict[Kind, list[Object]]:
    """Return the documents of a backup by kind; nothing is restored from one with an invalid line.

    Raises:
        BackupInvalid: a file is missing, or a line is invalid; the message names it.
    """
    from pydantic import ValidationError  # noqa: PLC0415

    from query.backup import KINDS, parsed  # noqa: PLC0415  # loads the models of the documents
    from shared.validation import first_problem  # noqa: PLC0415

    manifest = _documents(directory / MANIFEST)
    if len(manifest) != 1 or not isinstance(manifest[0].get("lines"), dict):
        raise BackupInvalid(f"{directory / MANIFEST}: expected one line")
    content: dict[Kind, list[Object]] = {}
    for kind in KINDS:
        expected = manifest[0]["lines"].get(kind)
        if expected is None:  # of another release
            continue
        path = _file(directory, kind)
        content[kind] = _documents(path)
        for number, document in enumerate(content[kind], 1):
            try:
                parsed(kind, document)
            except ValidationError as error:
                raise BackupInvalid(f"{path}, line {number}: {first_problem(error)}") from error
        if len(content[kind]) != expected:
            raise BackupInvalid(f"{path}: expected {expected} lines")
    return content


def _documents(path: Path) -> list[Object]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BackupInvalid(f"{path}: {reason}; is this the directory of a complete backup?") from error
    documents: list[Object] = []
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BackupInvalid(f"{path}, line {number}: expected JSON") from error
        if not isinstance(document, dict):
            raise BackupInvalid(f"{path}, line {number}: expected an object")
        documents.append(cast("Object", document))
    return documents


def _parts(documents: Sequence[Object]) -> Iterator[list[Object]]:
    """Yield the documents in parts of at most PART_BYTES, or of one document."""
    part: list[Object] = []
    size_bytes = 0
    for document in documents:
        length = len(json.dumps(document))
        if part and size_bytes + length > PART_BYTES:
            yield part
            part, size_bytes = [], 0
        part.append(document)
        size_bytes += length
    if part:
        yield part


def _file(directory: Path, kind: str) -> Path:
    return directory / f"{kind}.jsonl"
