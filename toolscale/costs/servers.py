"""The servers of an mcp.json, or of the user's clients, as `toolscale import` would write them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from shared.settings import Settings
from shared.upstream.mcp_json import Config, config_of
from toolscale.importing.client_files import Client, ClientFile, client_files, named_file, this_machine
from toolscale.importing.find import find_servers
from toolscale.importing.merge import merge
from toolscale.importing.target import FILE_NAME


@dataclass(frozen=True, slots=True)
class FoundServers:
    """The usable servers, the reasons against the others by name, and the files of both."""

    config: Config
    unusable: tuple[tuple[str, str], ...]
    files: tuple[Path, ...]


def servers_of(settings: Settings) -> FoundServers:
    """Return the servers of the settings' mcp.json, else of the data directory's, else of the user's clients.

    Raises:
        ConfigInvalid: the mcp.json cannot be read, or has no servers in a known form.
    """
    found = find_servers(_files(settings), this_machine(), settings)
    config = config_of(merge({}, found.servers, "rename").servers, os.environ)
    skipped = _named(entry.reason for entry in found.skipped)
    unusable = (*skipped, *((entry.name, entry.reason) for entry in config.problems))
    return FoundServers(config, unusable, tuple(file.path for file in found.read))


def _files(settings: Settings) -> list[ClientFile]:
    """Return the files to read. A project's files are not among them: their commands may be another person's."""
    config = settings.mcp_config or settings.data_dir / FILE_NAME
    if settings.mcp_config or config.is_file():
        return [named_file(config.absolute())]
    return [file for file in client_files(this_machine(), Path.cwd(), Client) if not file.project]


def _named(reasons: Iterable[str]) -> list[tuple[str, str]]:
    """Return the name that begins each reason, and the rest."""
    parts = [reason.partition(": ") for reason in reasons]
    return [(name, reason) for name, _, reason in parts]
