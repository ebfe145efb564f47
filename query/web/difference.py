"""What changed in the definition of a tool: the parts that differ, word by word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Literal, cast

if TYPE_CHECKING:
    from query.web.page import PageRequest
    from shared.catalog import ServerRecord

MOST_WORDS = 2_000
"""Of a text that is compared word by word; the time grows with their square."""
MOST_PARTS = 50

_WORD = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """Words that both texts have, or that only one of them has."""

    kind: Literal["same", "gone", "new"]
    text: str


@dataclass(frozen=True, slots=True)
class ChangedPart:
    """A part of a definition by its path, such as `inputSchema.properties.zone.description`."""

    path: str
    pieces: Sequence[Piece]


@dataclass(frozen=True, slots=True)
class ShownChange:
    """The changed definition of a tool, as it is accepted by its digest; no `parts` are stored of a large one."""

    tool: str
    digest: str
    is_new: bool
    since_s: float
    parts: Sequence[ChangedPart]


def changes_of(record: ServerRecord, request: PageRequest) -> list[ShownChange]:
    """Return the changes of a server that are not accepted, for operators, where this process can read them."""
    intents = request.catalogue.intents
    if not (record.unaccepted and request.may_operate and intents):
        return []
    found = intents.definitions(record.server_id)
    if found is None:
        return []
    return [
        ShownChange(
            name,
            change.digest,
            name not in found.accepted,
            change.since,
            changed_parts(*(json.loads(text) if text else None for text in (change.accepted, change.current)))
            if change.current
            else [],
        )
        for name, change in sorted(found.changed.items())
    ]


def changed_parts(before: object, after: object) -> list[ChangedPart]:
    """Return the parts that differ, at most MOST_PARTS; one that a single definition has is gone or new as a whole."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return [ChangedPart(path, compared(old.get(path, ""), new.get(path, ""))) for path in paths[:MOST_PARTS]]


def compared(before: str, after: str) -> list[Piece]:
    """Return the pieces of both texts: those that are not new are the first, those that are not gone the second.

    Long texts are compared as wholes.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    if max(len(old), len(new)) > MOST_WORDS:
        old, new = [before], [after]
    pieces: list[Piece] = []
    for _, old_start, old_end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        gone, added = "".join(old[old_start:old_end]), "".join(new[new_start:new_end])
        if gone == added:
            pieces.append(Piece("same", gone))
            continue
        pieces += [Piece("gone", gone)] if gone else []
        pieces += [Piece("new", added)] if added else []
    return pieces


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts of a definition by their paths; the definition is parsed JSON, which is not nested deeply."""
    if isinstance(value, dict) and value:
        for key, inner in cast("Mapping[str, Any]", value).items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif value is not None or path:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
