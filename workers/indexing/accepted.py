"""The accepted and the changed definitions of a server after a listing. No I/O here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast

from shared.catalog import DefinitionPolicy, ToolDefinition
from shared.intents.definitions import ChangedDefinition, Definitions

_COSMETIC = frozenset(("title", "icons"))


@dataclass(frozen=True, slots=True)
class Indexed:
    """A server's tools in the index by name: all, and those with the listed definition.

    `others` has the indexed definitions of tools that may have changed.
    """

    names: Collection[str]
    unchanged: Collection[str]
    others: Mapping[str, ToolDefinition] = field(default_factory=dict[str, ToolDefinition])


def reviewed(
    before: Definitions | None,
    server_id: str,
    tools: Collection[ToolDefinition],
    indexed: Indexed,
    policy: DefinitionPolicy,
    now: float,
) -> Definitions:
    """Return the accepted and the changed definitions after a listing; `now` is in seconds since the epoch.

    All definitions of a first listing count as accepted, unless the policy is `approve`. Without a document, and under
    `approve`, the definitions in the index count as accepted, except for known changes.
    """
    known = before or Definitions(server_id=server_id)
    is_first = not indexed.names and not known.digests()
    accepts_all = policy == "open" or (policy == "notify" and is_first)
    trusts_index = before is None or policy == "approve"
    accepted, changed = dict(known.accepted), dict[str, ChangedDefinition]()
    for tool in tools:
        name = tool.name
        if _is_settled(name, indexed, known):
            continue
        if before is None and name in indexed.others:
            accepted[name] = definition_digest(indexed.others[name])
        digest = definition_digest(tool)
        if accepts_all or (trusts_index and name in indexed.unchanged and name not in known.changed):
            accepted[name] = digest
        elif accepted.get(name) != digest:
            changed[name] = _change(tool, digest, known.changed.get(name), indexed.others.get(name), now)
    if policy == "open":
        listed = {tool.name for tool in tools}
        accepted = {name: digest for name, digest in accepted.items() if name in listed}
    document = Definitions(server_id=server_id, accepted=accepted, changed=changed, held=policy == "approve")
    return document.within_limit()


def newly_changed(before: Definitions | None, after: Definitions) -> list[str]:
    """Return the tools whose definition differs from the last one; of a first listing, the unaccepted tools."""
    last = before.digests() if before else {}
    found = after.digests() if last else {name: change.digest for name, change in after.changed.items()}
    return sorted(name for name, digest in found.items() if last.get(name) != digest)


def definition_digest(definition: ToolDefinition) -> str:
    """Return 32 hex digits that change with the definition, except for its cosmetic parts.

    The title counts where it takes the place of a missing description.
    """
    tool = definition.as_object()
    cosmetic = _COSMETIC if tool.get("description") else _COSMETIC - {"title"}
    kept = {key: _without_runs(value) for key, value in _without_display_name(tool).items() if key not in cosmetic}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


def _without_display_name(tool: Mapping[str, object]) -> dict[str, object]:
    """Return the definition without the title among its annotations, and without annotations that are empty then."""
    annotations = tool.get("annotations")
    if not isinstance(annotations, dict):
        return dict(tool)
    others = {key: value for key, value in cast("dict[str, object]", annotations).items() if key != "title"}
    kept = {key: value for key, value in tool.items() if key != "annotations"}
    return kept | ({"annotations": others} if others else {})


def _is_settled(name: str, indexed: Indexed, known: Definitions) -> bool:
    """Return whether the index has the accepted definition of this tool, as for most tools of most listings."""
    return name in indexed.unchanged and name in known.accepted and name not in known.changed


def _change(
    tool: ToolDefinition, digest: str, last: ChangedDefinition | None, indexed: ToolDefinition | None, now: float
) -> ChangedDefinition:
    accepted = last.accepted if last else indexed.wire if indexed else None
    return ChangedDefinition(digest=digest, since=last.since if last else now, accepted=accepted, current=tool.wire)


def _without_runs(value: object) -> object:
    """Return a JSON value whose texts have single spaces for runs of whitespace."""
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, list):
        return [_without_runs(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _without_runs(item) for key, item in cast("dict[str, object]", value).items()}
    return value
