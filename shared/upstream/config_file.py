"""The operator's `mcp.json` while it is edited: read again when it changed, and only then.

It is looked at by its status, not by notifications: those miss changes on network file systems and in containers,
and a file that an editor replaces by renaming is another file to them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from shared.errors import ConfigInvalid
from shared.upstream.dial import Target
from shared.upstream.mcp_json import Config, read_config
from shared.watched_file import FileSignature, file_signature


class ConfigFile:
    """What the file says now. Cheap to ask, since an unchanged file is not read again. Safe from several threads."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self._environ = environ
        self._lock = threading.Lock()
        self._signature: FileSignature = None
        self._found: Config | ConfigInvalid | None = None
        self._targets: dict[str, Target] = {}

    def config(self) -> Config:
        """Return what the file says; the same object as long as it does not change.

        Raises:
            ConfigInvalid: it cannot be used now.
        """
        with self._lock:
            found = self._current()
        if isinstance(found, ConfigInvalid):
            raise ConfigInvalid(str(found)) from found
        return found

    def get(self, server_id: str, /) -> Target | None:
        """Return where a server is dialled, None when the file does not name it.

        A server keeps the target it had while its entry, or the whole file, cannot be used.
        """
        with self._lock:
            self._current()
            return self._targets.get(server_id)

    def _current(self) -> Config | ConfigInvalid:
        signature = file_signature(self.path)  # before the file is read: a change in between is seen the next time
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
