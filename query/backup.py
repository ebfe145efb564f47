"""`toolscale backup` and `restore`: servers, accepted definitions, toolsets and savings as lines of JSON.

The tools are not in a backup: the servers offer them, and workers list them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import ValidationError

from query.history import open_history
from query.history.periods import today
from query.history.store import RowKey, ServerSize
from shared.catalog import StoredDocument
from shared.errors import BackupInvalid
from shared.intents.definitions import Definitions
from shared.intents.intent import Intent
from shared.intents.intents import Intents, open_intents
from shared.service.files import write_private
from shared.toolset import StoredToolset, Toolset
from shared.validation import first_problem
from workers.upkeep.recover import restored_intent

if TYPE_CHECKING:
    from query.history.store import SavingsHistory
    from shared.settings import Settings
    from toolscale.client.toolsets import Toolsets

MANIFEST = "backup.json"

T = TypeVar("T")


class SavingsLine(StoredDocument):
    """The counters of a row of the history."""

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
    """The size of a server on a day."""

    day: date
    server: str
    tools: int
    tokens: int


class Manifest(StoredDocument):
    """The time of a backup, and the number of lines of each kind. It is written last."""

    created_at: datetime
    lines: dict[str, int]


class Restored(NamedTuple):
    """Numbers of documents of a kind that were added, and that were there already and stay as they are."""

    added: int
    present: int


class Content(NamedTuple):
    """The documents of a backup."""

    definitions: list[Definitions]
    servers: list[Intent]
    toolsets: list[Toolset]
    savings: list[SavingsLine]
    sizes: list[SizeLine]


def write_backup(settings: Settings, directory: Path, toolsets: Toolsets) -> Manifest:
    """Write a backup into a new or an empty directory; only its owner can read the files.

    Raises:
        BackupInvalid: the directory has files, or cannot be written.
        ToolscaleError: a store does not answer.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BackupInvalid(f"{directory} is not empty; name a new directory")
        documents = [(kind, list(of_kind)) for kind, of_kind in _documents(settings, toolsets)]
        lines = {kind: _write(directory, kind, of_kind) for kind, of_kind in documents}
        manifest = Manifest(created_at=datetime.now(UTC), lines=lines)
        write_private(directory / MANIFEST, manifest.model_dump_json() + "\n")
    except OSError as error:
        raise BackupInvalid(f"{directory} cannot be written: {error.strerror or error}") from error
    return manifest


def read_backup(directory: Path) -> Content:
    """Return the documents of a backup; nothing is restored from one with an invalid line.

    Raises:
        BackupInvalid: a file is missing, or a line is invalid; the message names it.
    """
    manifest = _parsed(directory / MANIFEST, Manifest.model_validate)
    if len(manifest) != 1:
        raise BackupInvalid(f"{directory / MANIFEST}: expected one line")
    content = Content(
        _parsed(_file(directory, "definitions"), Definitions.model_validate),
        _parsed(_file(directory, "servers"), lambda line: Intent.model_validate(line, extra="ignore")),
        _parsed(_file(directory, "toolsets"), lambda line: StoredToolset.model_validate(line).toolset),
        _parsed(_file(directory, "savings"), SavingsLine.model_validate),
        _parsed(_file(directory, "sizes"), SizeLine.model_validate),
    )
    for kind, documents in content._asdict().items():
        if len(documents) != manifest[0].lines.get(kind, 0):
            raise BackupInvalid(f"{_file(directory, kind)}: expected {manifest[0].lines.get(kind, 0)} lines")
    return content


def restore_backup(settings: Settings, content: Content, toolsets: Toolsets) -> Iterator[tuple[str, Restored]]:
    """Add the missing documents, and yield the result of each kind; documents that are there stay as they are.

    Safe to repeat. Of a row of savings the higher counters stay.

    Raises:
        ToolscaleError: a store stopped answering; earlier documents are restored.
    """
    with closing(open_intents(settings)) as intents:
        now = intents.now()
        # before the servers, whose reconciliations read them
        yield "definitions", _count(_is_added(each, intents) for each in content.definitions)
        yield "servers", _count(intents.insert_if_absent(restored_intent(each, now)) for each in content.servers)
    yield "toolsets", _restore_toolsets(content.toolsets, toolsets)
    with closing(open_history(settings)) as history:
        yield "savings", _restore_savings(content.savings, history)
        yield "sizes", _restore_sizes(content.sizes, history)


def _documents(settings: Settings, toolsets: Toolsets) -> Iterator[tuple[str, Iterable[StoredDocument]]]:
    with closing(open_intents(settings)) as intents:
        servers = list(intents.intents())
        stored = (intents.definitions(intent.server_id) for intent in servers)
        yield "definitions", (document for document in stored if document)
        yield "servers", servers
    yield "toolsets", map(StoredToolset.of, toolsets.toolsets())
    first = today() - timedelta(days=settings.savings_keep_days - 1)
    days = [first + timedelta(days=offset) for offset in range(settings.savings_keep_days)]
    with closing(open_history(settings)) as history:
        yield "savings", (line for day in days for line in _savings(history, day))
        yield "sizes", (line for day in days for line in _sizes(history, day))


def _savings(history: SavingsHistory, day: date) -> Iterator[SavingsLine]:
    for key, counts in history.rows(day, day).items():
        yield SavingsLine(**key._asdict(), counts=dict(counts))


def _sizes(history: SavingsHistory, day: date) -> Iterator[SizeLine]:
    for server, size in history.sizes(day, day).get(day, {}).items():
        yield SizeLine(day=day, server=server, tools=size.tools, tokens=size.tokens)


def _write(directory: Path, kind: str, documents: Iterable[StoredDocument]) -> int:
    # Python's encoder: texts of servers may have lone surrogates
    lines = [json.dumps(document.model_dump(), default=_plain) + "\n" for document in documents]
    write_private(_file(directory, kind), "".join(lines))
    return len(lines)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else sorted(value)  # type: ignore[call-overload]


def _file(directory: Path, kind: str) -> Path:
    return directory / f"{kind}.jsonl"


def _parsed(path: Path, parse: Callable[[Any], T]) -> list[T]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BackupInvalid(f"{path}: {reason}; is this the directory of a complete backup?") from error
    return [_document(path, number, line, parse) for number, line in enumerate(lines, 1)]


def _document(path: Path, number: int, line: str, parse: Callable[[Any], T]) -> T:
    try:
        return parse(json.loads(line))
    except ValidationError as error:
        raise BackupInvalid(f"{path}, line {number}: {first_problem(error)}") from error
    except (ValueError, RecursionError) as error:
        raise BackupInvalid(f"{path}, line {number}: expected JSON") from error


def _count(added: Iterable[bool]) -> Restored:
    results = list(added)
    return Restored(results.count(True), results.count(False))


def _is_added(document: Definitions, intents: Intents) -> bool:
    before, _ = intents.update_definitions(document.server_id, lambda present: present or document)
    return before is None


def _restore_toolsets(wanted: Iterable[Toolset], toolsets: Toolsets) -> Restored:
    present = {toolset.name for toolset in toolsets.toolsets()}

    def is_added(toolset: Toolset) -> bool:
        if toolset.name not in present:
            toolsets.put_toolset(toolset)
        return toolset.name not in present

    return _count(map(is_added, wanted))


def _restore_savings(lines: Iterable[SavingsLine], history: SavingsHistory) -> Restored:
    added: list[bool] = []
    for day, of_day in groupby(sorted(lines, key=lambda line: line.key), key=lambda line: line.day):
        present = history.rows(day, day)
        missing = {line.key: _missing(line.counts, present.get(line.key, {})) for line in of_day}
        added += [any(counts.values()) for counts in missing.values()]
        history.add({key: counts for key, counts in missing.items() if any(counts.values())})
    return _count(added)


def _missing(wanted: dict[str, int], present: Any) -> dict[str, int]:
    return {name: max(0, amount - present.get(name, 0)) for name, amount in wanted.items()}


def _restore_sizes(lines: Iterable[SizeLine], history: SavingsHistory) -> Restored:
    added: list[bool] = []
    for day, of_day in groupby(sorted(lines, key=lambda line: line.day), key=lambda line: line.day):
        present = history.sizes(day, day).get(day, {})
        wanted = {line.server: ServerSize(line.tools, line.tokens) for line in of_day}
        history.store_sizes(day, {server: size for server, size in wanted.items() if server not in present})
        added += [server not in present for server in wanted]
    return _count(added)
