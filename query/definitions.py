"""`toolscale diff` and `approve`: the changed definitions of a server, and their acceptance.

Both use the intent store, which other processes may have open.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from difflib import get_close_matches, unified_diff
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.errors import ToolNotFound
from shared.events import ServerChanged, ServerRef
from shared.intents.definitions import ChangedDefinition, Definitions
from shared.intents.intent import Intent
from shared.intents.intents import Intents, open_intents
from shared.settings import Settings
from toolscale.client.emit import SOURCE, EmitResult, emit_result, enqueue
from toolscale.client.server_names import unknown
from workers.emit import Emitter, message_time_s


class Approval(BaseModel):
    """The accepted tools of a server, and the recorded request for its reconciliation, if it runs."""

    model_config = ConfigDict(frozen=True)

    server_id: str
    accepted: tuple[str, ...]
    request: EmitResult | None = None


def changes(settings: Settings, server: str, tools: Sequence[str] = ()) -> Definitions:
    """Return the changed definitions of a server, or those of these tools.

    Raises:
        ServerUnknown: the server was never announced.
        ToolNotFound: a tool has no changed definition.
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        _known(intents, server)
        found = intents.definitions(server) or Definitions(server_id=server)
    names = _named(found, tools)
    return found.model_copy(update={"changed": {name: found.changed[name] for name in sorted(names)}})


def approve(settings: Settings, server: str, tools: Sequence[str] = ()) -> Approval:
    """Accept the changed definitions of a server, or those of these tools, and request its reconciliation.

    `tool@digest` accepts a definition only if it still has this digest.

    Raises:
        ServerUnknown: the server was never announced.
        ToolNotFound: a tool has no changed definition, or another one; nothing is accepted.
        IntentsUnavailable: the store does not answer.
    """
    with closing(open_intents(settings)) as intents:
        intent = _known(intents, server)

        def accepted(found: Definitions | None) -> Definitions:
            document = found or Definitions(server_id=server)
            return document.accepting(_named(document, tools))

        if intents.definitions(server) is None:  # a new document would turn all tools of the index into changes
            _named(Definitions(server_id=server), tools)
            return Approval(server_id=server, accepted=())
        before, after = intents.update_definitions(server, accepted)
        names = tuple(sorted(before.changed.keys() - after.changed.keys())) if before else ()
        return Approval(server_id=server, accepted=names, request=_request(intent, intents, settings, names))


def as_object(found: Definitions) -> dict[str, Any]:
    """Return the changes as JSON; a definition that is not stored is null."""
    changed = [_object(found, name, change) for name, change in found.changed.items()]
    return {"server_id": found.server_id, "held": found.held, "changes": changed}


def diff(found: Definitions, name: str) -> list[str]:
    """Return a unified diff of the accepted and the current definition, with escapes for invisible characters.

    Keys are sorted, and each line of a text is a line of the diff.
    """
    change = found.changed[name]
    if change.current is None or (change.accepted is None and name in found.accepted):
        return ["(The definitions are not stored, since the changes of this server are too large.)"]
    label = f"{found.server_id}:{name}"
    sides = (f"{label} accepted", f"{label} current")
    return list(unified_diff(_lines(change.accepted), _lines(change.current), *sides, lineterm=""))


def head(found: Definitions, name: str) -> str:
    """Return the name that `approve` takes, and the time and the state of a change."""
    change = found.changed[name]
    kind = "changed" if name in found.accepted else "new"
    return f"{name}@{change.digest}: {kind} since {_iso(change)}, {'held' if found.held else 'served'}"


def _known(intents: Intents, server: str) -> Intent:
    intent = intents.intent(server)
    if intent is None:
        raise unknown(server, (each.server_id for each in intents.intents()))
    return intent


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
    near = tuple(get_close_matches(tool, list(found.changed)))
    raise ToolNotFound(tool, f"has no changed definition on {found.server_id}", near)


def _request(intent: Intent, intents: Intents, settings: Settings, names: Sequence[str]) -> EmitResult | None:
    if not names or intent.status != "running":
        return None
    notified: list[str] = []
    emitter = Emitter(intents, partial(enqueue, settings, notified), message_time_s(settings))
    event = ServerChanged(source=SOURCE, data=ServerRef(server_id=intent.server_id))
    return emit_result(emitter.emit(event), message_sent=bool(notified))


def _object(found: Definitions, name: str, change: ChangedDefinition) -> dict[str, Any]:
    return {
        "tool": name,
        "digest": change.digest,
        "changed_since": _iso(change),
        "is_new": name not in found.accepted,
        "accepted": _decoded(change.accepted),
        "current": _decoded(change.current),
    }


def _decoded(definition: str | None) -> Any:
    return None if definition is None else json.loads(definition)


def _iso(change: ChangedDefinition) -> str:
    return datetime.fromtimestamp(change.since, UTC).isoformat(timespec="seconds")


def _lines(definition: str | None) -> list[str]:
    """Return the definition as indented JSON with sorted keys, and a line for each line of a text."""
    if definition is None:
        return []
    text = json.dumps(json.loads(definition), indent=2, sort_keys=True, ensure_ascii=False)
    parts = (part for line in text.splitlines() for part in _parts(line))
    return ["".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in part) for part in parts]


def _parts(line: str) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    first, *others = line.replace("\\\\", "\\\\\0").split("\\n")
    for part in (first, *(f"{indent}  {other}" for other in others)):
        yield part.replace("\\\\\0", "\\\\")
