"""`toolscale backup` and `restore`: servers, accepted definitions, toolsets and usage as lines of JSON.

The tools are not in a backup: the servers offer them, and workers list them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from query.usage.usage import CatalogueSize, RowKey, Usage, open_usage, today
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
    from shared.settings import Settings
    from toolscale.client.toolsets import Toolsets

MANIFEST = "backup.json"


class UsageLine(StoredDocument):
    """The counters of a row of usage."""

    day: date
    caller: str
    server: str
    tool: str
    counts: dict[str, int]


class SizeLine(StoredDocument):
    """The catalogue's size on a day."""

    day: date
    servers: int
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


# In the order of their restoration: reconciliations of the servers read the definitions.
KINDS: Mapping[str, Callable[[Any], Any]] = {
    "definitions": Definitions.model_validate,
    "servers": lambda line: Intent.model_validate(line, extra="ignore"),
    "toolsets": lambda line: StoredToolset.model_validate(line).toolset,
    "savings": UsageLine.model_validate,
    "catalogue_sizes": SizeLine.model_validate,
}
"""How a line of each kind is read."""


def write_backup(settings: Settings, directory: Path, toolsets: Toolsets) -> Manifest:
    """Write a backup into a new or an empty directory; only its owner can read the files.

    Raises:
        BackupInvalid: the directory has files, or cannot be written.
        ToolscaleError: a store does not answer.
    """
    days = today() - timedelta(days=settings.savings_keep_days - 1), today()
    with closing(open_intents(settings)) as intents, closing(open_usage(settings)) as usage:
        servers = list(intents.intents())
        stored = (intents.definitions(intent.server_id) for intent in servers)
        documents: Mapping[str, Sequence[StoredDocument]] = {
            "definitions": [document for document in stored if document],
            "servers": servers,
            "toolsets": [StoredToolset.of(toolset) for toolset in toolsets.toolsets()],
            "savings": [UsageLine(**key._asdict(), counts=dict(counts)) for key, counts in usage.rows(*days).items()],
            "catalogue_sizes": [SizeLine(day=day, **size._asdict()) for day, size in usage.sizes(*days).items()],
        }
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise BackupInvalid(f"{directory} is not empty; name a new directory")
        for kind, of_kind in documents.items():
            # Python's encoder: texts of servers may have lone surrogates
            lines = [json.dumps(document.model_dump(), default=_plain) + "\n" for document in of_kind]
            write_private(directory / f"{kind}.jsonl", "".join(lines))
        manifest = Manifest(created_at=datetime.now(UTC), lines={kind: len(each) for kind, each in documents.items()})
        write_private(directory / MANIFEST, manifest.model_dump_json() + "\n")
    except OSError as error:
        raise BackupInvalid(f"{directory} cannot be written: {error.strerror or error}") from error
    return manifest


def read_backup(directory: Path) -> Mapping[str, list[Any]]:
    """Return the documents of a backup by kind; nothing is restored from one with an invalid line.

    Kinds of other releases are left out.

    Raises:
        BackupInvalid: a file is missing, or a line is invalid; the message names it.
    """
    manifests = _parsed(directory / MANIFEST, Manifest.model_validate)
    if len(manifests) != 1:
        raise BackupInvalid(f"{directory / MANIFEST}: expected one line")
    expected: Mapping[str, int] = manifests[0].lines
    found = {kind: _parsed(directory / f"{kind}.jsonl", KINDS[kind]) for kind in KINDS if kind in expected}
    for kind, documents in found.items():
        if len(documents) != expected[kind]:
            raise BackupInvalid(f"{directory / kind}.jsonl: expected {expected[kind]} lines")
    return found


def restore_backup(settings: Settings, backup: Mapping[str, list[Any]], toolsets: Toolsets) -> dict[str, Restored]:
    """Add the missing documents, and return the result of each kind; documents that are there stay as they are.

    Safe to repeat. Of a row of usage the higher counters stay.

    Raises:
        ToolscaleError: a store stopped answering; earlier documents are restored.
    """
    with closing(open_intents(settings)) as intents, closing(open_usage(settings)) as usage:
        now, present = intents.now(), {toolset.name for toolset in toolsets.toolsets()}
        restore: Mapping[str, Callable[[list[Any]], Iterable[bool]]] = {
            "definitions": lambda found: [_add_definitions(each, intents) for each in found],
            "servers": lambda found: [intents.insert_if_absent(restored_intent(each, now)) for each in found],
            "toolsets": lambda found: [_add_toolset(each, toolsets, present) for each in found],
            "savings": lambda found: _add_usage(found, usage),
            "catalogue_sizes": lambda found: [_add_size(each, usage) for each in found],
        }
        added = {kind: list(restore[kind](documents)) for kind, documents in backup.items()}
    return {kind: Restored(results.count(True), results.count(False)) for kind, results in added.items()}


def _add_definitions(document: Definitions, intents: Intents) -> bool:
    before, _ = intents.update_definitions(document.server_id, lambda present: present or document)
    return before is None


def _add_toolset(toolset: Toolset, toolsets: Toolsets, present: set[str]) -> bool:
    if toolset.name not in present:
        toolsets.put_toolset(toolset)
    return toolset.name not in present


def _add_usage(lines: Iterable[UsageLine], usage: Usage) -> list[bool]:
    added: list[bool] = []
    for day, of_day in groupby(sorted(lines, key=attrgetter("day")), key=attrgetter("day")):
        present = usage.rows(day, day)
        missing: dict[RowKey, dict[str, int]] = {}
        for line in of_day:
            key = RowKey(day, line.caller, line.server, line.tool)
            known = present.get(key, {})
            missing[key] = {name: max(0, amount - known.get(name, 0)) for name, amount in line.counts.items()}
        added += [any(counts.values()) for counts in missing.values()]
        usage.add({key: counts for key, counts in missing.items() if any(counts.values())})
    return added


def _add_size(line: SizeLine, usage: Usage) -> bool:
    is_missing = not usage.sizes(line.day, line.day)
    if is_missing:
        usage.put_size(line.day, CatalogueSize(line.servers, line.tools, line.tokens))
    return is_missing


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, date) else sorted(value)  # type: ignore[call-overload]


def _parsed(path: Path, parse: Callable[[Any], Any]) -> list[Any]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BackupInvalid(f"{path}: {reason}; is this the directory of a complete backup?") from error
    documents: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            documents.append(parse(json.loads(line)))
        except ValidationError as error:
            raise BackupInvalid(f"{path}, line {number}: {first_problem(error)}") from error
        except (ValueError, RecursionError) as error:
            raise BackupInvalid(f"{path}, line {number}: expected JSON") from error
    return documents
