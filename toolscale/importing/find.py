"""What the files of clients hold: servers in one form, and what cannot be taken over and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from shared.settings import Settings
from shared.upstream.mcp_json import SERVERS_KEYS, is_disabled, read_document, read_entry, server_id, variables_of
from toolscale.importing.client_files import Client, ClientFile, Machine
from toolscale.importing.entries import OPERATORS_OWN, definition, refuse_what_we_lack, started_in, with_folders
from toolscale.importing.self_reference import is_own_endpoint

# What stands in for a variable that is not set here, but may be where the servers are started.
_STAND_IN = "http://not-set.invalid"
_INPUT = re.compile(r"\$\{input:([^}]*)\}")

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that can be taken over. `entry` is as it would be written; `unset` names variables it needs."""

    server_id: str
    entry: dict[str, Any]
    file: ClientFile
    project: Path | None = None
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """A server, or a whole file, that cannot be taken over; the reason begins with its name and quotes no secret."""

    reason: str
    file: ClientFile


@dataclass(frozen=True, slots=True)
class FoundServers:
    """All that was found, in the order of the places; `read` are those that exist."""

    servers: tuple[FoundServer, ...]
    skipped: tuple[SkippedEntry, ...]
    read: tuple[ClientFile, ...]


def find_servers(places: Iterable[ClientFile], machine: Machine, settings: Settings) -> FoundServers:
    """Return what these places hold; one bad entry or file does not cost the others.

    Raises:
        ConfigInvalid: a file that was named cannot be read, or holds no servers in a form that we know.
    """
    read = tuple(file for file in places if file.client is None or file.path.is_file())
    reader = _Reader(machine, settings)
    entries = [candidate for place in read for candidate in reader.entries(place)]
    servers = tuple(candidate for candidate in entries if isinstance(candidate, FoundServer))
    return FoundServers(servers, tuple(candidate for candidate in entries if isinstance(candidate, SkippedEntry)), read)


@dataclass(frozen=True, slots=True)
class _Section:
    """The servers of one scope in a file."""

    servers: Object
    project: Path | None
    disabled: frozenset[str] = frozenset()


class _Reader:
    def __init__(self, machine: Machine, settings: Settings) -> None:
        self._machine = machine
        self._settings = settings

    def entries(self, file: ClientFile) -> Iterator[FoundServer | SkippedEntry]:
        try:
            document = read_document(file.path)
            sections = list(self._sections(document, file))
        except ConfigInvalid as error:
            if file.client is None:
                raise
            yield SkippedEntry(str(error), file)
            return
        if file.client is None and not sections:
            raise ConfigInvalid(f"{file.path}: expected an object 'mcpServers' or 'servers', or a client's settings")
        for section in sections:
            for name, raw in section.servers.items():
                yield self._server(name, raw, section, file, _questions(document))

    def _sections(self, document: Object, file: ClientFile) -> Iterator[_Section]:
        disabled = self._disabled_by_claude_code(file)
        for holder in (document, _object(document, "mcp")):
            for key in SERVERS_KEYS:
                if servers := _object(holder, key):
                    yield _Section(servers, file.project, disabled)
        for path in _object(document, "projects"):
            project = _object(_object(document, "projects"), path)
            off = frozenset[str](filter(_is_text, project.get("disabledMcpServers") or ()))
            yield _Section(_object(project, "mcpServers"), Path(path), off)

    def _disabled_by_claude_code(self, file: ClientFile) -> frozenset[str]:
        """Return the servers of a project's file that its user turned off, which is noted in another file."""
        state = self._machine.claude_code_state
        if file.client is not Client.CLAUDE_CODE or not file.project or not state.is_file():
            return frozenset()
        try:
            project = _object(_object(read_document(state), "projects"), str(file.project))
        except ConfigInvalid:
            return frozenset()  # told of when that file's turn comes
        return frozenset(filter(_is_text, project.get("disabledMcpjsonServers") or ()))

    def _server(
        self, name: str, raw: object, section: _Section, file: ClientFile, asks: Object
    ) -> FoundServer | SkippedEntry:
        try:
            entry = self._usable(name, raw, section, asks)
        except ConfigInvalid as error:
            return SkippedEntry(str(error), file)
        unset = tuple(sorted(variables_of(entry) - self._machine.environ.keys()))
        return FoundServer(server_id(name), entry, file, section.project, unset)

    def _usable(self, name: str, raw: object, section: _Section, asks: Object) -> dict[str, Any]:
        """Return an entry as it would be written.

        Raises:
            ConfigInvalid: it cannot, or must not, be taken over.
        """
        if not isinstance(raw, dict):
            raise ConfigInvalid(f"{name}: expected an object")
        entry = cast("dict[str, Any]", raw)
        if is_disabled(entry) or name in section.disabled:
            raise ConfigInvalid(f"{name}: it is disabled there")
        here = with_folders(entry, self._machine.home, section.project)
        refuse_what_we_lack(name, here)
        _refuse_questions(name, here, asks)
        variables = dict.fromkeys(variables_of(here), _STAND_IN) | dict(self._machine.environ)
        _, target = read_entry(name, here, variables)
        if is_own_endpoint(server_id(name), target, self._settings):
            raise ConfigInvalid(f"{name}: it is Toolscale itself")
        own = {key: here[key] for key in OPERATORS_OWN if here.get(key)}
        return started_in(definition(here), section.project) | own


def _refuse_questions(name: str, raw: Object, asks: Object) -> None:
    """Refuse what VS Code asks its user for."""
    if asked := _INPUT.search(str(raw)):
        about = asks.get(asked[1])
        said = f" ({about})" if about else ""
        variable = re.sub(r"\W+", "_", asked[1]).upper()
        raise ConfigInvalid(
            f"{name}: VS Code asks for {asked.group()}{said}; add it by hand with ${{{variable}}}, "
            "and set that variable where Toolscale runs"
        )


def _questions(document: Object) -> dict[str, str]:
    """Return what VS Code asks for, and in which words."""
    inputs = [*_list(document, "inputs"), *_list(_object(document, "mcp"), "inputs")]
    asked = [cast("dict[str, object]", item) for item in inputs if isinstance(item, dict)]
    return {str(question.get("id")): str(question.get("description") or "") for question in asked}


def _object(holder: Object, key: str) -> Object:
    found = holder.get(key)
    return cast("Object", found) if isinstance(found, dict) else {}


def _list(holder: Object, key: str) -> list[object]:
    found = holder.get(key)
    return cast("list[object]", found) if isinstance(found, list) else []


def _is_text(value: object) -> bool:
    return isinstance(value, str)
