"""The `mcp.json` that `toolscale serve` follows, and the writing of files with a backup."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.documents import read_text
from shared.upstream.mcp_json import SERVERS_KEYS, read_document
from shared.upstream.spellings import texts_of

FILE_NAME = "mcp.json"
"""Name of the file in a data directory, where `toolscale serve` reads it by default."""


@dataclass(frozen=True, slots=True)
class McpJson:
    """An `mcp.json`: its document, and its entries under `key`.

    `has_comments`: the file has comments or other syntax that JSON lacks; a write loses it.
    """

    path: Path
    document: dict[str, Any]
    key: str
    servers: dict[str, Any]
    has_comments: bool = False

    def write(self, servers: dict[str, Any]) -> Path | None:
        """Write the file with these servers and return its backup, None for a new file.

        Raises:
            ConfigInvalid: the file is not writable; it is unchanged.
        """
        return write_with_backup(self.path, dumped({**self.document, self.key: servers}))


def config_path(settings: Settings) -> Path:
    """Return the path of the operator's `mcp.json`: that of the settings, or of the data directory."""
    return settings.mcp_config or settings.data_dir / FILE_NAME


def with_config_file(settings: Settings) -> Settings:
    """Return the settings with the `mcp.json` of the data directory, if it exists and no other is set."""
    path = config_path(settings)
    return settings.model_copy(update={"mcp_config": path}) if path.is_file() else settings


def read_mcp_json(path: Path) -> McpJson:
    """Return the file, or an empty document if it does not exist.

    Raises:
        ConfigInvalid: the file is invalid.
    """
    document: dict[str, Any] = read_document(path).value if path.exists() else {}
    for _ in texts_of(str(path), document):
        pass  # it is not nested too deeply to be written
    key = next((key for key in SERVERS_KEYS if key in document), SERVERS_KEYS[0])
    servers = document.get(key, {})
    if not isinstance(servers, dict):
        raise ConfigInvalid(f"{path}: expected an object {key!r}")
    has_comments = False
    try:
        json.loads(read_text(path)) if document else None
    except ValueError:
        has_comments = True
    return McpJson(path.resolve(), document, key, cast("dict[str, Any]", servers), has_comments)


def dumped(document: object) -> str:
    """Return a document as the ASCII text of a file."""
    return json.dumps(document, indent=2) + "\n"


def write_with_backup(path: Path, text: str) -> Path | None:
    """Write a file and return its backup, None for a new file.

    The write is atomic. An existing file keeps its permissions; only the owner can read a new one.

    Raises:
        ConfigInvalid: the file is not writable; it is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _back_up(path) if path.exists() else None
        _replace(path, text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be written: {error.strerror or error}") from error
    return backup


def backups_of(path: Path) -> list[Path]:
    """Return the backups of a file, the latest content first; a backup has the time of its content."""
    found = path.parent.glob(f"{glob.escape(path.name)}.*.bak")
    return sorted(found, key=lambda backup: backup.stat().st_mtime_ns, reverse=True)


def _back_up(path: Path) -> Path:
    stem = f"{path.name}.{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = chain([f"{stem}.bak"], (f"{stem}.{number}.bak" for number in count(2)))
    backup = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    shutil.copy2(path, backup)  # its permissions too
    return backup


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, name)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
