"""The changes between the last listing of a server and this one, recorded in the index.

A change of meaning has another definition digest; all other changes are cosmetic.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from shared.catalog import DefinitionChange, ToolDefinition
from shared.catalog.drift import MAX_CHANGES, bounded, last_by_tool
from shared.text.definition_diff import definition_diff
from shared.text.display import printable
from workers.indexing.accepted import definition_digest

if TYPE_CHECKING:
    from shared.catalog import ChangeKind
    from shared.index.tools import ToolIndex
    from shared.intents.definitions import Definitions
    from workers.indexing.accepted import Indexed

MAX_PARTS = 12
MAX_PART_CHARACTERS = 80
MAX_DIFF_CHARACTERS = 8_192
# Of the definitions that a listing compares line by line, and of the two sides of one of its diffs. The time grows
# with the square of the lines: a hostile server needs less than a second.
MAX_COMPARED_CHARACTERS = 64 << 10
MAX_COMPARED_LINES = 2_000

# Parts have at most so many names, such as `inputSchema.properties.path`.
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class _Difference:
    """A change, and the definition before and after it, where both are known."""

    change: DefinitionChange
    before: ToolDefinition | None = None
    after: ToolDefinition | None = None


@dataclass(frozen=True, slots=True)
class Last:
    """The tools of the last listing: those in the index, and the changed ones, which may be held."""

    indexed: Indexed
    known: Definitions | None

    @property
    def names(self) -> frozenset[str]:
        """Return the names of its tools."""
        return frozenset((*self.indexed.names, *(self.known.changed if self.known else ())))

    @property
    def digests(self) -> Mapping[str, str]:
        """Return the known definition digests, also of tools in earlier listings."""
        return self.known.digests() if self.known else {}

    def definition(self, name: str) -> ToolDefinition | None:
        """Return a tool's definition, None if it is not stored, or equal to that of this listing."""
        changed = self.known.changed.get(name) if self.known else None
        if changed and changed.current:
            return ToolDefinition.from_wire(changed.current)
        return self.indexed.others.get(name)


def record_changes(
    tools: Collection[ToolDefinition], last: Last, server_id: str, index: ToolIndex, now: float
) -> Mapping[ChangeKind, int]:
    """Store the changes since the last listing; return the number of each kind, in the order of first occurrence.

    Nothing is stored for a first listing, and nothing is read for an unchanged one. An interrupted run repeats its
    changes, which are stored once. The caller writes the new definitions later.
    """
    names, digests = last.names, last.digests
    differing = [tool for tool in tools if not _is_unchanged(tool, last)]
    gone = names - {tool.name for tool in tools}
    if not (names or digests) or not (differing or gone):
        return {}
    stored = index.changes(server_id)
    last_changes = last_by_tool(stored)
    removed = {name for name, change in last_changes.items() if change.kind == "removed"}
    differences = [each for tool in differing if (each := _difference(tool, last, removed, now))]
    differences += [_Difference(DefinitionChange(tool=name, at=now, before=digests.get(name, ""))) for name in gone]
    changes = [each for each in _with_diffs(differences) if not each.repeats(last_changes.get(each.tool))]
    if changes:
        index.put_changes(server_id, bounded((*changes, *stored)))
    return Counter(change.kind for change in changes)


def changed_parts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the parts that differ, such as `description` and `inputSchema.required`, in a fixed order.

    The order of keys is no difference.
    """
    names = [printable(".".join(path))[:MAX_PART_CHARACTERS] for path in _paths(before, after, _DEPTH)]
    more = len(names) - MAX_PARTS
    return (*names[:MAX_PARTS], *([f"{more} more"] if more > 0 else []))


def _is_unchanged(tool: ToolDefinition, last: Last) -> bool:
    if tool.name in last.indexed.unchanged:
        return True
    changed = last.known.changed.get(tool.name) if last.known else None
    return changed is not None and changed.current == tool.wire


def _difference(tool: ToolDefinition, last: Last, removed: Collection[str], now: float) -> _Difference | None:
    """Return how a listed tool differs from the last listing, None if it does not; `removed` were not in it."""
    before, digest = last.definition(tool.name), definition_digest(tool)
    if before:
        sides = before.as_object(), tool.as_object()
        parts, digests = changed_parts(*sides), {"before": definition_digest(before), "after": digest}
        change = DefinitionChange(tool=tool.name, at=now, parts=parts, texts=_digest(sides), **digests)
        return _Difference(change, before, tool) if parts else None
    known = last.digests.get(tool.name)
    if known == digest and tool.name not in removed:
        return None  # accepted and not yet in the index, or the index was lost
    is_new = known is None or tool.name in removed
    return _Difference(DefinitionChange(tool=tool.name, at=now, before=None if is_new else known, after=digest))


def _digest(sides: tuple[dict[str, Any], dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(sides, sort_keys=True).encode()).hexdigest()[:16]


def _with_diffs(differences: Iterable[_Difference]) -> Generator[DefinitionChange]:
    """Yield the changes; those that are stored first have a diff, unless their definitions are too large."""
    left = MAX_COMPARED_CHARACTERS
    for number, each in enumerate(sorted(differences, key=lambda each: each.change.rank, reverse=True)):
        size = len(each.before.wire) + len(each.after.wire) if each.before and each.after else 0
        if each.before is None or each.after is None or number >= MAX_CHANGES or size > left:
            yield each.change
            continue
        left -= size
        yield each.change.model_copy(update={"diff": _diff(each.before, each.after)})


def _diff(before: ToolDefinition, after: ToolDefinition) -> str:
    text = "\n".join(definition_diff(before.wire, after.wire, ("before", "after"), MAX_COMPARED_LINES))
    return text if len(text) <= MAX_DIFF_CHARACTERS else f"{text[:MAX_DIFF_CHARACTERS]}\n(The rest is not stored.)"


def _paths(before: object, after: object, depth: int, path: tuple[str, ...] = ()) -> Generator[tuple[str, ...]]:
    if depth and isinstance(before, Mapping) and isinstance(after, Mapping):
        old, new = cast("Mapping[str, object]", before), cast("Mapping[str, object]", after)
        for key in sorted(old.keys() | new.keys()):
            if key in old and key in new:
                yield from _paths(old[key], new[key], depth - 1, (*path, key))
            else:
                yield *path, key
    elif json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True):
        yield path
