"""The changes of a server's tool definitions, within bounds. No I/O here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from shared.documents import StoredDocument

MAX_CHANGES = 100
"""The number of stored changes of a server."""

MAX_CHANGES_BYTES = 64 << 10
"""The size of a server's stored changes, as JSON in ASCII."""

ChangeKind = Literal["added", "removed", "meaning", "cosmetic"]

# The keys and brackets around the stored entries.
_ENVELOPE_BYTES = 64


class DefinitionChange(BaseModel):
    """A tool's definition in a listing that differs from the last one, at a time in seconds since the epoch.

    `before` and `after` are definition digests, which ignore cosmetic parts; None: the server did not list the tool,
    and an empty `before` is unknown. `parts` names the parts that differ, such as `inputSchema.required`.
    `texts` is a digest of both whole definitions, in 16 hex digits, and empty if one is not known. `diff` is empty if
    it is not stored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    tool: str
    at: float
    before: str | None = None
    after: str | None = None
    parts: tuple[str, ...] = ()
    texts: str = ""
    diff: str = ""

    @property
    def kind(self) -> ChangeKind:
        """Return whether the tool is new or gone, or which kind of parts of its definition changed."""
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "cosmetic" if self.before == self.after else "meaning"

    @property
    def rank(self) -> tuple[bool, float, bool, str]:
        """Return a sort key: cosmetic changes are dropped first, then older ones, then added and removed tools."""
        return self.kind != "cosmetic", self.at, self.kind == "meaning", self.tool

    @property
    def without_diff(self) -> DefinitionChange:
        """Return the change without its diff."""
        return self.model_copy(update={"diff": ""})

    def repeats(self, last: DefinitionChange | None) -> bool:
        """Return whether an interrupted run stored this change already, as the last one of its tool."""
        return last is not None and self._identity == last._identity

    @property
    def _identity(self) -> tuple[str, str | None, str | None, str]:
        return self.tool, self.before, self.after, self.texts


class StoredChanges(StoredDocument):
    """The changes of a server, newest first, without their diffs, which are stored beside it."""

    changes: tuple[DefinitionChange, ...]


def bounded(changes: Iterable[DefinitionChange]) -> tuple[DefinitionChange, ...]:
    """Return the changes to store, newest first: at most MAX_CHANGES, in MAX_CHANGES_BYTES.

    Diffs are dropped before changes.
    """
    left, kept = MAX_CHANGES_BYTES - _ENVELOPE_BYTES, list[DefinitionChange]()
    ranked = sorted(changes, key=lambda change: change.rank, reverse=True)[:MAX_CHANGES]
    for change in ranked:
        size = _size(change.without_diff.model_dump()) + _size("")
        if size > left:
            break
        left -= size
        kept.append(change)
    for number, change in enumerate(kept):
        fits = _size(change.diff) <= left
        left -= _size(change.diff) if fits else 0
        kept[number] = change if fits else change.without_diff
    return newest_first(kept)


def newest_first(changes: Iterable[DefinitionChange]) -> tuple[DefinitionChange, ...]:
    """Return the changes in the order of their times; those of the same time by their tools."""
    return tuple(sorted(changes, key=lambda change: (-change.at, change.tool)))


def last_by_tool(changes: Sequence[DefinitionChange]) -> dict[str, DefinitionChange]:
    """Return the last change of each tool; `changes` are newest first."""
    return {change.tool: change for change in reversed(changes)}


def _size(value: object) -> int:
    """Return the bytes of a value and of its separator in a list, as JSON in ASCII."""
    return len(json.dumps(value)) + len(", ")
