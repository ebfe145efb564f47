"""Changed definitions: the policy of a server decides whether they are accepted, served with a mark, or held.

A server may change a tool after users trusted it. Each tool has an accepted definition, and a definition with another
digest is unaccepted. The digest ignores the order of keys, `title`, `icons` and runs of whitespace.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from shared.catalog import (
    DEFINITION_CHANGES,
    OPERATOR_SOURCE,
    POLICIES,
    DefinitionPolicy,
    Listing,
    ToolDefinition,
    owner_of,
    point_id,
)
from shared.intents.definitions import ChangedDefinition, Definitions

if TYPE_CHECKING:
    from shared.index.tools import ToolIndex, ToolState
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents

NAMED_IN_LOG = 50
_COSMETIC = frozenset(("title", "icons"))


@dataclass(frozen=True, slots=True)
class Review:
    """The listing without held tools, and the ISO date of each unaccepted change that is served, by tool.

    `unaccepted` counts the changes, and `held` those of them that are not served.
    """

    listing: Listing
    changed_since: Mapping[str, str]
    unaccepted: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class Indexed:
    """A server's tools in the index by name: all, and those with the listed definition.

    `others` has the indexed definitions of tools that may have changed.
    """

    names: Collection[str]
    unchanged: Collection[str]
    others: Mapping[str, ToolDefinition] = field(default_factory=dict[str, ToolDefinition])


def policy_of(intent: Intent, setting: DefinitionPolicy) -> DefinitionPolicy:
    """Return the policy of a server: its label in the operator's file, else the stricter of label and setting."""
    label = cast("DefinitionPolicy", intent.announcement.labels.get(DEFINITION_CHANGES, setting))
    if owner_of(intent.source) == OPERATOR_SOURCE:
        return label
    return POLICIES[max(POLICIES.index(label), POLICIES.index(setting))]


def review(
    listing: Listing,
    digests: Mapping[str, str],
    states: Mapping[str, ToolState],
    intent: Intent,
    index: ToolIndex,
    intents: Intents,
    setting: DefinitionPolicy,
) -> Review:
    """Store the changes of a listing, log new ones, and return the tools to serve; safe to repeat and to interrupt.

    `digests` are those of the listing, and `states` those of the index, by tool. The document is stored before any tool
    is written, so a killed run leaves no tool that the next one holds.
    """
    server_id, policy = intent.server_id, policy_of(intent, setting)
    known = intents.definitions(server_id)
    unchanged = frozenset(name for name in states if states[name].digest == digests.get(name))
    # the indexed definitions of all differing tools are read once, and later those of newly changed ones
    differing = states.keys() - unchanged - (known.changed.keys() if known else set())
    wanted = [tool.name for tool in listing.tools if tool.name in differing]
    found = index.get([point_id(server_id, name) for name in wanted]).values() if wanted else ()
    indexed = Indexed(states.keys(), unchanged, {tool.definition.name: tool.definition for tool in found})
    change = partial(
        reviewed, server_id=server_id, tools=listing.tools, indexed=indexed, policy=policy, now=time.time()
    )
    before, after = known, change(known)
    if before != after:
        expected = after
        # computed outside of the store's transaction, and again only if an operator accepted a change meanwhile
        before, after = intents.update_definitions(server_id, lambda last: expected if last == known else change(last))
    if changed := newly_changed(before, after):
        structlog.get_logger().warning(
            "definitions_changed", server=server_id, policy=policy, changed=len(changed), tools=changed[:NAMED_IN_LOG]
        )
    unaccepted = len(after.changed)
    if not after.held:
        dates = {
            name: datetime.fromtimestamp(change.since, UTC).date().isoformat() for name, change in after.changed.items()
        }
        return Review(listing, dates, unaccepted)
    served = tuple(tool for tool in listing.tools if tool.name not in after.changed)
    return Review(replace(listing, tools=served), {}, unaccepted, unaccepted)


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
        if name in indexed.unchanged and name in known.accepted and name not in known.changed:
            continue  # as for most tools of most listings
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
    kept = {key: _without_runs(value) for key, value in tool.items() if key not in cosmetic}
    if isinstance(annotations := kept.get("annotations"), dict):
        others = {key: value for key, value in cast("dict[str, object]", annotations).items() if key != "title"}
        kept["annotations"] = others
        if not others:
            del kept["annotations"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]


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
