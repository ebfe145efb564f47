"""A backup in documents: servers, accepted definitions, toolsets and savings.

The tools are not in a backup: the servers offer them, and workers list them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, cast, get_args

from query.usage.usage import CatalogueSize, RowKey, today
from shared.catalog import StoredDocument
from shared.intents import transitions
from shared.intents.definitions import Definitions
from shared.intents.intent import Intent
from shared.toolset import StoredToolset, Toolset

if TYPE_CHECKING:
    from query.usage.usage import Usage
    from shared.intents.intents import Intents

Kind = Literal["definitions", "servers", "toolsets", "savings", "catalogue_sizes"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of a restore: the reconciliations of restored servers read their accepted definitions."""


class SavingsLine(StoredDocument):
    """The counters of a row of usage."""

    day: date
    caller: str
    server: str
    tool: str
    counts: dict[str, int]

    @property
    def key(self) -> RowKey:
        """Return the key of the row."""
        return RowKey(self.day, self.caller, self.server, self.tool)


class SizeLine(StoredDocument):
    """The catalogue's size on a day."""

    day: date
    servers: int
    tools: int
    tokens: int


class Restored(NamedTuple):
    """Numbers of documents that were added, and that were there already and stay as they are."""

    added: int
    present: int


class Toolsets(Protocol):
    """The stored toolsets: an index, embedded or on a server."""

    def toolsets(self) -> list[Toolset]:
        """Return all toolsets, ordered by name."""
        ...

    def put_toolset(self, toolset: Toolset) -> None:
        """Write a toolset, replacing the one of this name."""
        ...


class Stores(NamedTuple):
    """The stores that a backup copies."""

    intents: Intents
    toolsets: Toolsets
    usage: Usage
    keep_days: int


def parsed(kind: Kind, document: object) -> StoredDocument:
    """Return the valid document of a backup, also of another release.

    Raises:
        ValidationError: it is invalid.
    """
    match kind:
        case "definitions":
            return Definitions.model_validate(document)
        case "servers":
            return Intent.model_validate(document, extra="ignore")
        case "toolsets":
            stored = StoredToolset.model_validate(document)
            assert stored.toolset  # validates it
            return stored
        case "savings":
            return SavingsLine.model_validate(document)
        case "catalogue_sizes":
            return SizeLine.model_validate(document)


def documents_of(kind: Kind, stores: Stores) -> Iterator[dict[str, Any]]:
    """Yield the documents of a kind as JSON objects.

    Raises:
        IntentsUnavailable, IndexUnavailable, HistoryUnavailable: a store does not answer.
    """
    for document in _documents(kind, stores):
        # keys are sorted within sets, so that equal states have equal backups
        yield {name: _plain(value) for name, value in document.model_dump(mode="python").items()}


def restored(kind: Kind, wanted: Sequence[StoredDocument], stores: Stores) -> Restored:
    """Add the missing documents of a kind; those that are there stay. Safe to repeat.

    Of a row of savings the higher counters stay.

    Raises:
        IntentsUnavailable, IndexUnavailable, HistoryUnavailable: a store stopped answering; a part is restored.
    """
    match kind:
        case "definitions":
            return _count(_is_added(document, stores.intents) for document in cast("Sequence[Definitions]", wanted))
        case "servers":
            now = stores.intents.now()
            intents = (transitions.restored(intent, now) for intent in cast("Sequence[Intent]", wanted))
            return _count(map(stores.intents.insert_if_absent, intents))
        case "toolsets":
            return _restore_toolsets(cast("Sequence[StoredToolset]", wanted), stores.toolsets)
        case "savings":
            rows = {line.key: line.counts for line in cast("Sequence[SavingsLine]", wanted)}
            raised = stores.usage.raise_to(rows)
            return Restored(raised, len(rows) - raised)
        case "catalogue_sizes":
            return _count(_is_size_added(line, stores.usage) for line in cast("Sequence[SizeLine]", wanted))


def _documents(kind: Kind, stores: Stores) -> Iterable[StoredDocument]:
    days = today() - timedelta(days=stores.keep_days - 1), today()
    match kind:
        case "definitions":
            stored = (stores.intents.definitions(intent.server_id) for intent in stores.intents.intents())
            return (document for document in stored if document)
        case "servers":
            return stores.intents.intents()
        case "toolsets":
            return map(StoredToolset.of, stores.toolsets.toolsets())
        case "savings":
            return (
                SavingsLine(**key._asdict(), counts=dict(counts)) for key, counts in stores.usage.rows(*days).items()
            )
        case "catalogue_sizes":
            return (SizeLine(day=day, **size._asdict()) for day, size in stores.usage.sizes(*days).items())


def _plain(value: Any) -> Any:
    """Return the value as JSON; pydantic's own JSON rejects the lone surrogates in texts of servers."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in cast("Sequence[Any]", value)]
    if isinstance(value, frozenset | set):
        return sorted(cast("frozenset[str]", value))
    return value.isoformat() if isinstance(value, date) else value


def _count(added: Iterable[bool]) -> Restored:
    results = list(added)
    return Restored(results.count(True), results.count(False))


def _is_added(document: Definitions, intents: Intents) -> bool:
    before, _ = intents.update_definitions(document.server_id, lambda present: present or document)
    return before is None


def _restore_toolsets(wanted: Iterable[StoredToolset], toolsets: Toolsets) -> Restored:
    present = {toolset.name for toolset in toolsets.toolsets()}

    def is_added(toolset: Toolset) -> bool:
        if toolset.name not in present:
            toolsets.put_toolset(toolset)
        return toolset.name not in present

    return _count(is_added(stored.toolset) for stored in wanted)


def _is_size_added(line: SizeLine, usage: Usage) -> bool:
    is_missing = not usage.sizes(line.day, line.day)
    if is_missing:
        usage.put_size(line.day, CatalogueSize(line.servers, line.tools, line.tokens))
    return is_missing
