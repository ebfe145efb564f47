"""The `mcp.json` of an import: a complete read and an atomic write."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.mcp_json import SERVERS_KEYS, read_document
from toolscale.importing.entries import dumped

FILE_NAME = "mcp.json"
"""Name of the file in a data directory, where `toolscale serve` reads it by default."""


@dataclass(frozen=True, slots=True)
class TargetFile:
    """An `mcp.json`: its document, and its entries under `key`.

    `has_comments`: the file has comments or other syntax that JSON lacks; a write loses it.
    """

    path: Path
    document: dict[str, Any]
    key: str
    servers: dict[str, Any]
    has_comments: bool = False


def config_path(settings: Settings) -> Path:
    """Return the path of the operator's `mcp.json`: that of the settings, or of the data directory."""
    return settings.mcp_config or settings.data_dir / FILE_NAME


def with_config_file(settings: Settings) -> Settings:
    """Return the settings with the `mcp.json` of the data directory, if it exists and no other is set."""
    path = config_path(settings)
    return settings.model_copy(update={"mcp_config": path}) if path.is_file() else settings


def read_target(path: Path) -> TargetFile:
    """Return the file, or an empty document if it does not exist.

    Raises:
        ConfigInvalid: the file is invalid.
    """
    document = read_document(path) if path.exists() else {}
    key = next((key for key in SERVERS_KEYS if key in document), SERVERS_KEYS[0])
    servers = document.get(key, {})
    if not isinstance(servers, dict):
        raise ConfigInvalid(f"{path}: expected an object {key!r}")
    has_comments = path.exists() and not _is_json(path)
    return TargetFile(path.resolve(), document, key, cast("dict[str, Any]", servers), has_comments)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError:
        return False
    return True


def write_servers(target: TargetFile, servers: dict[str, Any], now: datetime) -> Path | None:
    """Write the file with these servers and return its backup, None for a new file.

    Raises:
        ConfigInvalid: the file is not writable; it is unchanged.
    """
    return write_with_backup(target.path, dumped({**target.document, target.key: servers}), now)


def write_with_backup(path: Path, text: str, now: datetime) -> Path | None:
    """Write a file and return its backup, None for a new file.

    The write is atomic. An existing file keeps its permissions; only the owner can read a new one.

    Raises:
        ConfigInvalid: the file is not writable; it is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _back_up(path, now) if path.exists() else None
        _replace(path, text)
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be written: {error.strerror or error}") from error
    return backup


def backups_of(path: Path) -> list[Path]:
    """Return the backups of a file, the latest content first; a backup has the time of its content."""
    found = path.parent.glob(f"{glob.escape(path.name)}.*.bak")
    return sorted(found, key=lambda backup: backup.stat().st_mtime_ns, reverse=True)


def _back_up(path: Path, now: datetime) -> Path:
    stem = f"{path.name}.{now:%Y%m%dT%H%M%SZ}"
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
