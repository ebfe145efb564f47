"""The changed definitions of a server, and their acceptance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shared.errors import ToolNotFound
from shared.intents.definitions import Definitions
from shared.validation import nearest_names

if TYPE_CHECKING:
    from shared.intents.intents import Intents


def changes(intents: Intents, server_id: str, tools: Sequence[str] = ()) -> dict[str, Any]:
    """Return the changed definitions of a server, or those of these tools, as JSON.

    `accepted` and `current` are null where the definitions are not stored, and `accepted` also of a new tool.

    Raises:
        ToolNotFound: a tool has no changed definition.
        IntentsUnavailable: the store does not answer.
    """
    found = intents.definitions(server_id) or Definitions(server_id=server_id)
    changed = [
        {
            "tool": name,
            "digest": (change := found.changed[name]).digest,
            "changed_since": datetime.fromtimestamp(change.since, UTC).isoformat(timespec="seconds"),
            "is_new": name not in found.accepted,
            "accepted": change.accepted and json.loads(change.accepted),
            "current": change.current and json.loads(change.current),
        }
        for name in sorted(_named(found, tools))
    ]
    return {"server_id": server_id, "held": found.held, "changes": changed}


def accept(intents: Intents, server_id: str, tools: Sequence[str] = ()) -> tuple[str, ...]:
    """Accept the changed definitions of a server, or those of these tools; return their names.

    `tool@digest` accepts a definition only if it still has this digest.

    Raises:
        ToolNotFound: a tool has no changed definition, or another one; nothing is accepted.
        IntentsUnavailable: the store does not answer.
    """

    def accepted(found: Definitions | None) -> Definitions:
        document = found or Definitions(server_id=server_id)
        return document.accepting(_named(document, tools))

    if intents.definitions(server_id) is None:  # a new document would turn all tools of the index into changes
        _named(Definitions(server_id=server_id), tools)
        return ()
    before, after = intents.update_definitions(server_id, accepted)
    return tuple(sorted(before.changed.keys() - after.changed.keys())) if before else ()


def _named(found: Definitions, tools: Sequence[str]) -> frozenset[str]:
    return frozenset(_name_of(found, tool) for tool in tools) if tools else frozenset(found.changed)


def _name_of(found: Definitions, tool: str) -> str:
    """Return the name of the tool in `tool` or `tool@digest`."""
    if tool in found.changed:
        return tool
    # the whole digest: a server can find two definitions with the same first digits
    name, _, digest = tool.rpartition("@")
    change = found.changed.get(name)
    if change and change.digest == digest:
        return name
    if change:
        raise ToolNotFound(tool, "has changed again; compare", (f"{name}@{change.digest}",))
    near = tuple(nearest_names(tool, found.changed))
    raise ToolNotFound(tool, f"has no changed definition on {found.server_id}", near)
