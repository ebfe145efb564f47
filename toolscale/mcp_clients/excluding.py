"""Tools that a person leaves out of the servers of the followed `mcp.json`."""

from __future__ import annotations

import glob
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from shared.server_ids import server_id
from shared.upstream.documents import read_text
from toolscale.mcp_clients.editing import edited
from toolscale.mcp_clients.files import read_mcp_json, write_with_backup

_KEY = "excludeTools"
_writing = threading.Lock()


def exclude(path: Path, tools: Mapping[str, Collection[str]]) -> None:
    """Add these tools, by the id of their server, to `excludeTools` of its entry; the file keeps a backup.

    Raises:
        ConfigInvalid: the file has no entry of a server, or cannot be edited or written; it is unchanged.
    """
    with _writing:
        found = read_mcp_json(path)
        entries = {name: entry for name, entry in found.servers.items() if server_id(name) in tools}
        if missing := tools.keys() - set(map(server_id, entries)):
            raise ConfigInvalid(f"{path}: has no entry of {', '.join(sorted(missing))}")
        put = {name: _excluding(name, entry, tools[server_id(name)]) for name, entry in entries.items()}
        write_with_backup(found.path, edited(path, read_text(path), found.key, put))


def _excluding(name: str, entry: object, tools: Collection[str]) -> dict[str, Any]:
    before = cast("dict[str, Any]", entry).get(_KEY, []) if isinstance(entry, dict) else None
    if not isinstance(before, list):
        raise ConfigInvalid(f"{name}: expected a list {_KEY}")
    known = cast("list[str]", before)
    # a name may have characters of a pattern, and must leave out no other tool
    added = [pattern for tool in sorted(tools) if (pattern := glob.escape(tool)) not in known]
    return {**cast("dict[str, Any]", entry), _KEY: [*known, *added]}
