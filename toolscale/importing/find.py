"""Servers in the files of clients, and the entries that cannot be imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.mcp_json import is_disabled, read_entry, server_id, variables_of
from toolscale.importing.client_files import Client, ClientFile, Machine
from toolscale.importing.entries import OPERATORS_OWN, definition, reject_unsupported, started_in, with_folders
from toolscale.importing.formats import (
    MCP_JSON,
    UNKNOWN,
    Format,
    NotImportable,
    Object,
    by_name,
    formats_of,
    read_any,
    value_at,
)
from toolscale.importing.self_reference import is_own_endpoint

# Value of a variable that is not set here; it may be set where Toolscale runs.
_STAND_IN = "http://not-set.invalid"
_INPUT = re.compile(r"\$\{input:([^}]*)\}")


@dataclass(frozen=True, slots=True)
class FoundServer:
    """An importable server with the entry to write; `unset` names its variables that are not set here."""

    server_id: str
    entry: dict[str, Any]
    file: ClientFile
    project: Path | None = None
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _SkippedEntry:
    """An entry or a file that cannot be imported; the reason begins with its name and contains no secret."""

    reason: str
    file: ClientFile


@dataclass(frozen=True, slots=True)
class FoundServers:
    """All entries in the order of the files; `read` are the existing files."""

    servers: tuple[FoundServer, ...]
    skipped: tuple[_SkippedEntry, ...]
    read: tuple[ClientFile, ...]


def find_servers(files: Iterable[ClientFile], machine: Machine, settings: Settings) -> FoundServers:
    """Return the entries of these files; an invalid entry or file does not affect the others.

    Raises:
        ConfigInvalid: a file named by the user is unreadable, or has no servers in a known form.
    """
    read = tuple(file for file in files if _is_required(file) or file.path.is_file())
    reader = _Reader(machine, settings)
    entries = [entry for file in read for entry in reader.entries(file)]
    servers = tuple(entry for entry in entries if isinstance(entry, FoundServer))
    return FoundServers(servers, tuple(entry for entry in entries if isinstance(entry, _SkippedEntry)), read)


def server_of_entry(name: str, entry: Object, file: ClientFile, machine: Machine, settings: Settings) -> FoundServer:
    """Return the server of an entry that is not yet in this file.

    Raises:
        ConfigInvalid: the entry is invalid, or is Toolscale itself; the message begins with the name.
    """
    return _Reader(machine, settings).server(name, entry, _Section({}, file.project), file, {})


def _is_required(file: ClientFile) -> bool:
    return file.is_named or file.client is None


@dataclass(frozen=True, slots=True)
class _Section:
    """The servers of one scope in a file, with their format."""

    servers: Object
    project: Path | None
    disabled: frozenset[str] = frozenset()
    format: Format = MCP_JSON


class _Reader:
    def __init__(self, machine: Machine, settings: Settings) -> None:
        self._machine = machine
        self._settings = settings

    def entries(self, file: ClientFile) -> Iterator[FoundServer | _SkippedEntry]:
        try:
            document = read_any(file.path)
            sections = list(self._sections(document, file))
        except ConfigInvalid as error:
            if _is_required(file):
                raise
            yield _SkippedEntry(str(error), file)
            return
        if _is_required(file) and not sections:
            raise ConfigInvalid(
                f"{file.path}: this {UNKNOWN}; expected an object 'mcpServers' or 'servers', or a client's settings"
            )
        for section in sections:
            for name, raw in section.servers.items():
                yield self._server_or_reason(name, raw, section, file, _questions(document))

    def _sections(self, document: Object, file: ClientFile) -> Iterator[_Section]:
        """Yield the servers of each scope.

        Raises:
            ConfigInvalid: the value of a key has another shape.
        """
        disabled = self._disabled_by_claude_code(file)
        for form in formats_of(file.client, document):
            for key in form.keys + form.unknown:
                value = value_at(document, key)
                servers = None if key in form.unknown else by_name(value)
                if servers is None and value is not None:
                    raise ConfigInvalid(f"{file.path}: {key} {UNKNOWN}")
                if servers:
                    yield _Section(servers, file.project, disabled, form)
        for path in _object(document, "projects"):
            project = _object(_object(document, "projects"), path)
            off = frozenset[str](filter(_is_text, project.get("disabledMcpServers") or ()))
            yield _Section(_object(project, "mcpServers"), Path(path), off)

    def _disabled_by_claude_code(self, file: ClientFile) -> frozenset[str]:
        """Return the servers that the user disabled; Claude Code stores them in another file."""
        state = self._machine.claude_code_state
        if file.client is not Client.CLAUDE or not file.project or not state.is_file():
            return frozenset()
        try:
            project = _object(_object(read_any(state), "projects"), str(file.project))
        except ConfigInvalid:
            return frozenset()  # that file is read too, and its error reported then
        return frozenset(filter(_is_text, project.get("disabledMcpjsonServers") or ()))

    def _server_or_reason(
        self, name: str, raw: object, section: _Section, file: ClientFile, questions: Object
    ) -> FoundServer | _SkippedEntry:
        try:
            return self.server(name, raw, section, file, questions)
        except ConfigInvalid as error:
            return _SkippedEntry(str(error), file)

    def server(self, name: str, raw: object, section: _Section, file: ClientFile, questions: Object) -> FoundServer:
        entry = self._usable(name, raw, section, questions)
        unset = tuple(sorted(variables_of(entry) - self._machine.environ.keys()))
        return FoundServer(server_id(name), entry, file, section.project, unset)

    def _usable(self, name: str, raw: object, section: _Section, questions: Object) -> dict[str, Any]:
        """Return the entry to write.

        Raises:
            ConfigInvalid: it cannot be imported.
        """
        if not isinstance(raw, dict):
            raise ConfigInvalid(f"{name}: expected an object")
        entry = _in_one_form(name, cast("Object", raw), section.format)
        if is_disabled(entry) or name in section.disabled:
            raise ConfigInvalid(f"{name}: it is disabled")
        here = with_folders(entry, self._machine.home, section.project)
        reject_unsupported(name, here)
        _reject_questions(name, here, questions)
        variables = dict.fromkeys(variables_of(here), _STAND_IN) | dict(self._machine.environ)
        _, target = read_entry(name, here, variables)
        if is_own_endpoint(server_id(name), target, self._settings):
            raise ConfigInvalid(f"{name}: it is Toolscale itself")
        own = {key: here[key] for key in OPERATORS_OWN if here.get(key)}
        return started_in(definition(here), section.project) | own


def _in_one_form(name: str, raw: Object, form: Format) -> Object:
    """Return the entry as in an `mcp.json`; raise ConfigInvalid if it cannot be imported."""
    try:
        return {key: value for key, value in form.entry(raw).items() if value is not None}
    except NotImportable as error:
        raise ConfigInvalid(f"{name}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a part of the entry has another type
        raise ConfigInvalid(f"{name}: this {UNKNOWN}") from error


def _reject_questions(name: str, raw: Object, questions: Object) -> None:
    """Reject an entry with values that VS Code requests from its user."""
    if requested := _INPUT.search(str(raw)):
        question = questions.get(requested[1])
        shown = f" ({question})" if question else ""
        variable = re.sub(r"\W+", "_", requested[1]).upper()
        raise ConfigInvalid(
            f"{name}: VS Code asks for {requested.group()}{shown}; add it by hand with ${{{variable}}}, "
            "and set that variable where Toolscale runs"
        )


def _questions(document: Object) -> dict[str, str]:
    """Return the questions of VS Code by their ids."""
    inputs = [*_list(document, "inputs"), *_list(_object(document, "mcp"), "inputs")]
    questions = [cast("dict[str, object]", item) for item in inputs if isinstance(item, dict)]
    return {str(question.get("id")): str(question.get("description") or "") for question in questions}


def _object(holder: Object, key: str) -> Object:
    found = holder.get(key)
    return cast("Object", found) if isinstance(found, dict) else {}


def _list(holder: Object, key: str) -> list[object]:
    found = holder.get(key)
    return cast("list[object]", found) if isinstance(found, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
