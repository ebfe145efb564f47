"""A backup in documents: servers, accepted definitions, toolsets and savings.

The tools are not in a backup: the servers offer them, and workers list them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args

from query.usage.usage import CatalogueSize, RowKey, today
from shared.catalog import StoredDocument
from shared.intents import transitions
from shared.intents.definitions import Definitions
from shared.intents.intent import Intent
from shared.toolset import StoredToolset

if TYPE_CHECKING:
    from query.usage.usage import Usage
    from shared.index.tools import ToolIndex
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


class Stores(NamedTuple):
    """The stores that a backup copies; the toolsets are in an index, embedded or on a server."""

    intents: Intents
    toolsets: ToolIndex
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
            added = sum(_is_added(document, stores.intents) for document in cast("Sequence[Definitions]", wanted))
        case "servers":
            now = stores.intents.now()
            intents = (transitions.restored(intent, now) for intent in cast("Sequence[Intent]", wanted))
            added = sum(map(stores.intents.insert_if_absent, intents))
        case "toolsets":
            present = {toolset.name for toolset in stores.toolsets.toolsets()}
            toolsets = [stored.toolset for stored in cast("Sequence[StoredToolset]", wanted)]
            absent = [toolset for toolset in toolsets if toolset.name not in present]
            for toolset in absent:
                stores.toolsets.put_toolset(toolset)
            added = len(absent)
        case "savings":
            lines = cast("Sequence[SavingsLine]", wanted)
            added = stores.usage.raise_to({line.key: line.counts for line in lines})
        case "catalogue_sizes":
            sizes = cast("Sequence[SizeLine]", wanted)
            missing = [size for size in sizes if not stores.usage.sizes(size.day, size.day)]
            for size in missing:
                stores.usage.put_size(size.day, CatalogueSize(size.servers, size.tools, size.tokens))
            added = len(missing)
    return Restored(added, len(wanted) - added)


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


def _is_added(document: Definitions, intents: Intents) -> bool:
    before, _ = intents.update_definitions(document.server_id, lambda present: present or document)
    return before is None
