"""The change of a client's file: Toolscale is added or removed, and servers that Toolscale has now are moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from shared.errors import ConfigInvalid
from shared.upstream.masking import masked_servers
from shared.upstream.mcp_json import server_id
from toolscale.connecting.editing import edited, servers_in, syntax_of
from toolscale.connecting.targets import NAME, TARGETS, Connection, entry_for, file_of
from toolscale.importing.client_files import TITLES, Client, Machine
from toolscale.importing.target import backups_of, write_with_backup


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """A change of a client's file. `moved` are the servers that leave it, `returned` those that a backup has."""

    client: Client
    path: Path
    before: str
    after: str
    moved: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Return whether the file changes."""
        return self.before != self.after

    @property
    def title(self) -> str:
        """Return the name of the client."""
        return TITLES[self.client]

    def shown(self) -> tuple[str, str]:
        """Return the servers before and after the change, with masked secrets, in the syntax of the file."""
        key, render = TARGETS[self.client].key, syntax_of(self.path).rendered
        before, after = (servers_in(self.path, text, key) for text in (self.before, self.after))
        return render(key, masked_servers(before, {})), render(key, masked_servers(after, before))

    def write(self, now: datetime) -> Path | None:
        """Write the file and return its backup, None for a new file.

        Raises:
            ConfigInvalid: the file is not writable; it is unchanged.
        """
        return write_with_backup(self.path, self.after, now)


def connecting(client: Client, connection: Connection, machine: Machine, moved: Collection[str] = ()) -> ConnectionPlan:
    """Return the plan to add Toolscale to a client's file, and to remove servers with these ids. Idempotent.

    Raises:
        ConfigInvalid: the file has a form that cannot be edited, or the client cannot use the connection.
    """
    path, key, text = _file(client, machine)
    servers, entry = servers_in(path, text, key), entry_for(client, connection)
    leaving = tuple(name for name in servers if server_id(name) in moved and name != NAME)
    put = {} if _has(servers.get(NAME), entry) else {NAME: entry}
    return ConnectionPlan(client, path, text, _edited(path, text, key, put, leaving), leaving)


def disconnecting(client: Client, machine: Machine, known: Iterable[str]) -> ConnectionPlan:
    """Return the plan to remove Toolscale from a client's file.

    The servers that an import moved return: those of the latest backup without Toolscale that are among the `known`
    servers of Toolscale.

    Raises:
        ConfigInvalid: the file has a form that cannot be edited.
    """
    path, key, text = _file(client, machine)
    servers = servers_in(path, text, key)
    if NAME not in servers:
        return ConnectionPlan(client, path, text, text)
    known = tuple(known)
    backup = _servers_before(path, key)
    returned = {name: entry for name, entry in backup.items() if name not in servers and _is_known(name, known)}
    after = _edited(path, text, key, returned, (NAME,))
    return ConnectionPlan(client, path, text, after, returned=tuple(returned))


def _file(client: Client, machine: Machine) -> tuple[Path, str, str]:
    path = file_of(client, machine)
    try:
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error}") from error
    return path, TARGETS[client].key, text


def _edited(path: Path, text: str, key: str, put: Mapping[str, Any], drop: Collection[str]) -> str:
    return edited(path, text, key, put, drop) if put or drop else text


def _has(present: object, entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has all that Toolscale would write; its user may have added more."""
    return isinstance(present, dict) and present == {**present, **entry}


def _servers_before(path: Path, key: str) -> dict[str, Any]:
    for backup in backups_of(path):
        try:
            servers = servers_in(path, backup.read_text(encoding="utf-8-sig"), key)
        except (OSError, UnicodeDecodeError, ConfigInvalid):
            continue  # not a backup of this program
        if NAME not in servers:
            return servers
    return {}


def _is_known(name: str, known: Collection[str]) -> bool:
    """Return whether Toolscale has a server of this name; an import may have added the client to it."""
    own = server_id(name)
    return any(each == own or each.startswith(f"{own}-") for each in known)
