"""The operator's `mcp.json`, parsed again only after a change.

Changes are detected by `stat`. File notifications miss changes on network file systems and in containers,
and lose a file that an editor replaces by renaming.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from shared.errors import AddressForbidden, ConfigInvalid
from shared.service.files import FileSignature, file_signature
from shared.upstream.dial import Target
from shared.upstream.mcp_json import Config, read_config


class ConfigFile:
    """The current servers of the file. Cheap, since an unchanged file is not read. Safe from several threads."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self._environ = environ
        self._lock = threading.Lock()
        self._signature: FileSignature = None
        self._found: Config | ConfigInvalid | None = None
        self._targets: dict[str, Target] = {}

    def config(self) -> Config:
        """Return the servers of the file: the same object as long as the file does not change.

        Raises:
            ConfigInvalid: the file is invalid now.
        """
        with self._lock:
            found = self._current()
        if isinstance(found, ConfigInvalid):
            raise ConfigInvalid(str(found)) from found
        return found

    def get(self, server_id: str, /) -> Target | None:
        """Return the target of a server, None if the file does not name it.

        A server keeps its last target while its entry, or the whole file, is invalid.

        Raises:
            AddressForbidden: the entry was never valid; the address of an event must not replace it.
        """
        with self._lock:
            found = self._current()
            target = self._targets.get(server_id)
        if target is None and isinstance(found, Config) and server_id in found.named:
            raise AddressForbidden(server_id, "the operator's mcp.json names this server, but its entry is invalid")
        return target

    def targets(self) -> Mapping[str, Target]:
        """Return the targets of all servers, as `get` does: the same object as long as the file does not change."""
        with self._lock:
            self._current()
            return self._targets

    def entry(self, server_id: str, /) -> object:
        """Return the entry of a server as it is written in the file; None while it, or the file, is invalid."""
        with self._lock:
            found = self._current()
        return found.entries.get(server_id) if isinstance(found, Config) else None

    def _current(self) -> Config | ConfigInvalid:
        signature = file_signature(self.path)  # before the file is read: a change in between causes another read
        if self._found is None or signature != self._signature:
            self._found, self._signature = self._read(), signature
        return self._found

    def _read(self) -> Config | ConfigInvalid:
        try:
            config = read_config(self.path, self._environ)
        except ConfigInvalid as error:
            return error
        kept = {server_id: target for server_id, target in self._targets.items() if server_id in config.named}
        self._targets = kept | dict(config.targets)
        return config
