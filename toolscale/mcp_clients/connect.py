"""The change of a client's file: Toolscale is added or removed, and servers that Toolscale has now are moved."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import ConfigInvalid
from shared.server_ids import server_id
from shared.upstream.masking import masked_servers
from toolscale.mcp_clients.clients import CLIENTS, NAME, Client, Machine, file_to_connect
from toolscale.mcp_clients.editing import Entry, edited, servers_in, syntax_of
from toolscale.mcp_clients.files import backups_of


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """A change of a client's file. `moved` are the servers that leave it, `returned` those that a backup has."""

    client: Client
    path: Path
    before: str
    after: str
    moved: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    def shown(self) -> tuple[str, str]:
        """Return the servers before and after the change, with masked secrets, in the syntax of the file."""
        key, render = CLIENTS[self.client].key, syntax_of(self.path).rendered
        before, after = (servers_in(self.path, text, key) for text in (self.before, self.after))
        return render(key, masked_servers(before, {})), render(key, masked_servers(after, before))


def connecting(client: Client, machine: Machine, entry: Entry, moved: Collection[str] = ()) -> ConnectionPlan:
    """Return the plan to add Toolscale to a client's file, and to remove servers with these ids. Idempotent.

    Raises:
        ConfigInvalid: the file has a form that cannot be edited.
    """
    path, key, text = _file(client, machine)
    servers = servers_in(path, text, key)
    leaving = tuple(name for name in servers if server_id(name) in moved and name != NAME)
    present = servers.get(NAME)
    # the user may have added more to the entry
    is_there = isinstance(present, dict) and present == {**present, **entry}
    put = {} if is_there else {NAME: entry}
    after = edited(path, text, key, put, leaving) if put or leaving else text
    return ConnectionPlan(client, path, text, after, leaving)


def disconnecting(client: Client, machine: Machine, known: Iterable[str]) -> ConnectionPlan:
    """Return the plan to remove Toolscale from a client's file.

    The servers that an import moved return: those of the latest backup without Toolscale that are among the `known`
    servers of Toolscale.

    Raises:
        ConfigInvalid: the file has a form that cannot be edited.
    """
    path, key, text = _file(client, machine)
    servers, known = servers_in(path, text, key), tuple(known)
    if NAME not in servers:
        return ConnectionPlan(client, path, text, text)
    backup = _servers_before(path, key)
    returned = {name: entry for name, entry in backup.items() if name not in servers and _is_known(name, known)}
    after = edited(path, text, key, returned, (NAME,))
    return ConnectionPlan(client, path, text, after, returned=tuple(returned))


def _file(client: Client, machine: Machine) -> tuple[Path, str, str]:
    """Return the client's file, the key of its servers, and its text as it is, an empty one for a new file."""
    path = file_to_connect(client, machine)
    try:
        text = path.read_bytes().decode("utf-8") if path.exists() else ""
    except OSError as error:
        raise ConfigInvalid(f"{path}: cannot be read: {error}") from error
    except UnicodeDecodeError as error:  # an edit would change the encoding for the client
        raise ConfigInvalid(f"{path}: cannot be edited, since it is not UTF-8; save it as UTF-8") from error
    return path, CLIENTS[client].key, text


def _servers_before(path: Path, key: str) -> dict[str, Any]:
    """Return the servers of the latest backup without Toolscale; none without a backup."""
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
