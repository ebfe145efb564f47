"""Changed definitions: the policy of a server decides whether they are accepted, served with a mark, or held.

A server may change a tool after users trusted it. Each tool has an accepted definition, and a definition with another
digest is unaccepted. The digest ignores the order of keys, `title`, `icons` and runs of whitespace.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from shared.catalog import DEFINITION_CHANGES, OPERATOR_SOURCE, POLICIES, DefinitionPolicy, Listing, owner_of, point_id
from workers.indexing.accepted import Indexed, newly_changed, reviewed

if TYPE_CHECKING:
    from shared.index.tools import ToolIndex, ToolState
    from shared.intents.definitions import Definitions, DefinitionsChange
    from shared.intents.intent import Intent
    from shared.intents.intents import Intents

NAMED_IN_LOG = 50


@dataclass(frozen=True, slots=True)
class Review:
    """The listing without held tools, and the ISO date of each unaccepted change that is served, by tool.

    `unaccepted` counts the changes, and `held` those of them that are not served.
    """

    listing: Listing
    changed_since: Mapping[str, str]
    unaccepted: int = 0
    held: int = 0


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
    unchanged = frozenset(name for name in states if states[name].digest == digests.get(name))
    known = intents.definitions(server_id)
    indexed = _with_others(Indexed(states.keys(), unchanged), listing, server_id, index, known)
    change = partial(
        reviewed, server_id=server_id, tools=listing.tools, indexed=indexed, policy=policy, now=time.time()
    )
    before, after = _update(server_id, known, change, intents)
    if changed := newly_changed(before, after):
        structlog.get_logger().warning(
            "definitions_changed", server=server_id, policy=policy, changed=len(changed), tools=changed[:NAMED_IN_LOG]
        )
    unaccepted = len(after.changed)
    if not after.held:
        dates = {name: _date(change.since) for name, change in after.changed.items()}
        return Review(listing, dates, unaccepted)
    served = tuple(tool for tool in listing.tools if tool.name not in after.changed)
    return Review(replace(listing, tools=served), {}, unaccepted, unaccepted)


def _update(
    server_id: str, known: Definitions | None, change: DefinitionsChange, intents: Intents
) -> tuple[Definitions | None, Definitions]:
    """Store the changed document, and return it before and after.

    It is computed outside of the store's transaction, and again only if an operator accepted a change meanwhile.
    """
    expected = change(known)
    if known == expected:
        return known, expected
    return intents.update_definitions(server_id, lambda last: expected if last == known else change(last))


def _with_others(
    indexed: Indexed, listing: Listing, server_id: str, index: ToolIndex, known: Definitions | None
) -> Indexed:
    """Read the indexed definitions that a review needs: of all differing tools once, later of newly changed ones."""
    names = [
        tool.name
        for tool in listing.tools
        if tool.name in indexed.names
        and tool.name not in indexed.unchanged
        and (known is None or tool.name not in known.changed)
    ]
    found = index.get([point_id(server_id, name) for name in names]).values() if names else ()
    return replace(indexed, others={tool.definition.name: tool.definition for tool in found})


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
