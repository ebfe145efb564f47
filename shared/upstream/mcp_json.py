"""Read the operator's `mcp.json`, the format of Claude Desktop and Code, Cursor and VS Code.

    {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]},
                    "docs": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}}}}

VS Code uses `servers` instead of `mcpServers`, and comments. `${VAR}`, `${VAR:-default}` and `${env:VAR}` are replaced
from the environment. An entry may have `groups`, `labels` and options for Toolscale; `disabled: true` skips it. Its
keys may have the spelling of any client: `shared.upstream.spellings` has the table.
This file is the only source of commands: an event cannot contain a command.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from shared.catalog import NAME_LABEL, OPERATOR_SOURCE
from shared.errors import AddressForbidden, ConfigInvalid
from shared.events import Group, Label, ServerAnnouncement, ServerUp
from shared.quoting import encodable, quoted_name
from shared.server_ids import server_id
from shared.service.files import FileSignature, file_signature
from shared.upstream.auth import OF_SERVICE, UNREGISTERED
from shared.upstream.documents import Document, parse_json, read_text
from shared.upstream.options import OPTION_KEYS, STATEFUL, OptionKeys, ServerOptions, restricts_tools
from shared.upstream.spellings import SPELLINGS, is_switch, is_switched_off, spelled
from shared.upstream.target import NOT_SENDABLE, PROJECT, SENDABLE, HttpTarget, StdioTarget, Target
from shared.validation import checked_url, first_problem

SOURCE = OPERATOR_SOURCE

SERVERS_KEYS = ("mcpServers", "servers")
"""The key of the servers: for Claude and Cursor, and for VS Code."""

_VARIABLE = re.compile(r"\$\{(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")
_ANY_LIST = TypeAdapter(list[Any])
_ANY_OBJECT = TypeAdapter(dict[str, Any])
_ENTRY_KEYS = OPTION_KEYS | SPELLINGS | frozenset(("groups", "labels", "disabled", "enabled", "isActive"))
_SIMILAR = 0.8
_LONGEST_LABEL = 200
_SCHEME = re.compile(r"[A-Za-z]+\s+")  # of a credential that is empty
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_LEFTOVER = re.compile(r"\$\{[^}]*\}")


class EntryProblem(BaseModel):
    """An unusable entry of a file, and the reason. With `has_no_id`, another entry has its id."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, BeforeValidator(encodable)]
    reason: str
    has_no_id: bool = False

    @property
    def server_id(self) -> str:
        """Return the id that the server of this entry would have; a text that is no id if it can have none."""
        return f"{self.name} (without an id)" if self.has_no_id else server_id(self.name)

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Config:
    """The valid servers of a file with their targets, and the problems of the others.

    `named` contains the ids of all servers that should run, also those with a problem. `entries` has the entries of the
    valid ones in one spelling, and `options` what they set, both by server id. `switched_off` are the names of
    others, and `repeated` the keys that the file has twice.
    """

    announcements: tuple[ServerAnnouncement, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict[str, Target])
    problems: tuple[EntryProblem, ...] = ()
    named: frozenset[str] = frozenset()
    entries: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    options: Mapping[str, ServerOptions] = field(default_factory=dict[str, ServerOptions])
    switched_off: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    def events(self) -> list[ServerUp]:
        """Return a server-up event for each usable server."""
        return [ServerUp(source=SOURCE, data=announcement) for announcement in self.announcements]


def _http_url(url: str) -> str:
    checked_url(url, "http", "https")
    return url


class Entry(OptionKeys):
    """One server of the file, as `spelled` returns it; keys for clients only are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    type: Literal["stdio", "http", "sse"] | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str])
    cwd: str | None = None
    url: Annotated[str, AfterValidator(_http_url)] | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    groups: frozenset[Group] = frozenset()
    labels: dict[Label, Label] = Field(default_factory=dict[Label, Label])

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):  # it may hold the value too
                raise ValueError("expected a header's name, such as Authorization, before each value")
            if not SENDABLE.fullmatch(value.strip()) or _SCHEME.fullmatch(value):
                raise ValueError(f"the value of {name} cannot be sent: {NOT_SENDABLE}")
        return {name: value.strip() for name, value in headers.items()}  # a file of one line ends with a line end

    @field_validator("labels")
    @classmethod
    def _checked_state(cls, labels: dict[str, str]) -> dict[str, str]:
        if labels.get(STATEFUL, "false") not in ("true", "false"):
            raise ValueError(f"expected 'true' or 'false' under {STATEFUL!r}")
        return labels


class ConfigFile:
    """The current servers of a file, which is parsed again only after a change. Safe from several threads.

    Changes are detected by `stat`. File notifications miss changes on network file systems and in containers,
    and lose a file that an editor replaces by renaming.
    """

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self._environ = environ
        self._lock = threading.Lock()
        self._signature: FileSignature = None
        self._found: Config | ConfigInvalid | None = None
        self._targets: dict[str, Target] = {}
        self._options: dict[str, ServerOptions] = {}

    def config(self) -> Config:
        """Return the servers of the file: the same object as long as the file does not change.

        Raises:
            ConfigInvalid: the file is invalid now.
        """
        with self._lock:
            found = self._current()
        if isinstance(found, ConfigInvalid):
            raise ConfigInvalid(str(found)) from found
        return found

    def get(self, server_id: str, /) -> Target | None:
        """Return the target of a server, None if the file does not name it.

        A server keeps its last target while its entry, or the whole file, is invalid.

        Raises:
            AddressForbidden: the entry was never valid; the address of an event must not replace it.
        """
        with self._lock:
            found = self._current()
            target = self._targets.get(server_id)
        if target is None and isinstance(found, Config) and server_id in found.named:
            raise AddressForbidden(server_id, "the operator's mcp.json names this server, but its entry is invalid")
        return target

    def targets(self) -> Mapping[str, Target]:
        """Return the targets of all servers, as `get` does: the same object as long as the file does not change."""
        with self._lock:
            self._current()
            return self._targets

    def options(self, server_id: str, /) -> ServerOptions | None:
        """Return the options in the entry of a server, None if the file does not name it; kept as its target is."""
        with self._lock:
            self._current()
            return self._options.get(server_id)

    def entry(self, server_id: str, /) -> object:
        """Return the entry of a server in one spelling; None while it, or the file, is invalid."""
        with self._lock:
            found = self._current()
        return found.entries.get(server_id) if isinstance(found, Config) else None

    def _current(self) -> Config | ConfigInvalid:
        signature = file_signature(self.path)  # before the file is read: a change in between causes another read
        if self._found is None or signature != self._signature:
            self._found, self._signature = self._read(), signature
        return self._found

    def _read(self) -> Config | ConfigInvalid:
        try:
            config = read_config(self.path, self._environ)
        except ConfigInvalid as error:
            return error
        kept = {server_id: target for server_id, target in self._targets.items() if server_id in config.named}
        self._targets = kept | dict(config.targets)
        self._options = {each: self._options[each] for each in kept} | dict(config.options)
        return config


def read_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Return the servers of an `mcp.json`; an invalid entry is listed in `problems` and does not affect the others.

    Raises:
        ConfigInvalid: the file cannot be read, is not JSON, or has neither `mcpServers` nor `servers`.
    """
    document = read_document(path)
    return config_of(_servers_of(path, document.value), environ, document.repeated)


def config_of(entries: Mapping[str, Any], environ: Mapping[str, str], repeated: tuple[str, ...] = ()) -> Config:
    """Return the servers of these entries, which are those of an `mcp.json` by name."""
    announcements: list[ServerAnnouncement] = []
    targets: dict[str, Target] = {}
    problems: list[EntryProblem] = []
    named: dict[str, str] = {}
    known: dict[str, object] = {}
    options: dict[str, ServerOptions] = {}
    switched_off: list[str] = []
    for name, raw in entries.items():
        own_id = server_id(name)
        try:
            # before variables are expanded, since an entry that is switched off may lack them
            if is_switched_off(name, raw):
                switched_off.append(name)
                continue
            if (other := named.setdefault(own_id, name)) != name:
                reason = f"its id {own_id!r} is that of the entry {other!r}; rename one of them"
                problems.append(EntryProblem(name=name, reason=reason, has_no_id=True))
                continue
            announcement, target, its_options = read_entry(name, raw, environ)
            announcements.append(announcement)
            targets[own_id], options[own_id] = target, its_options
            known[own_id] = spelled(name, raw).entry
        except ConfigInvalid as error:
            named.setdefault(own_id, name)
            problems.append(EntryProblem(name=name, reason=str(error).removeprefix(f"{name}: ")))
    return Config(
        *(tuple(announcements), targets, tuple(problems), frozenset(named), known, options),
        *(tuple(switched_off), repeated),
    )


def read_entry(
    name: str, raw: object, environ: Mapping[str, str], written: Mapping[str, str] = MappingProxyType({})
) -> tuple[ServerAnnouncement, Target, ServerOptions]:
    """Return the announcement, the target and the options of a server.

    `written` are the keys of the file, if the entry is spelled already.

    Raises:
        ConfigInvalid: the entry is invalid; the message begins with the server and quotes no value.
    """
    _reject_misspelt_keys(name, raw)
    known, keys = spelled(name, raw)
    try:
        # again, since a variable may have another spelling of the type
        entry = Entry.model_validate(spelled(name, _expand(known, environ, name)).entry)
        announcement, target = _server(name, entry, _shown(entry.url, str(known.get("url"))))
    except ValidationError as error:
        raise ConfigInvalid(f"{name}: {first_problem(error, 'entry', {**keys, **written})}") from error
    return announcement, target, entry.options(is_stateful=entry.labels.get(STATEFUL) == "true")


def _reject_misspelt_keys(name: str, raw: object) -> None:
    """Reject a key that resembles a missing key of an entry, or that may restrict tools; others belong to clients."""
    entry = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    keys = frozenset(entry)
    for key in sorted(key for key in keys - _ENTRY_KEYS if not is_switch(key)):
        if meant := _similar(key, _ENTRY_KEYS - keys):
            raise ConfigInvalid(f"{name}: there is no key {key!r}; did you mean {meant!r}?")
        if restricts_tools(key, entry[key]):
            raise ConfigInvalid(f"{name}: {key} would have no effect; write 'includeTools' or 'excludeTools'")


def _similar(key: str, known: Collection[str]) -> str | None:
    by_lower_case = {name.lower(): name for name in sorted(known)}
    similar = get_close_matches(key.lower(), by_lower_case, n=1, cutoff=_SIMILAR)
    return by_lower_case[similar[0]] if similar else None


def variables_of(raw: object) -> frozenset[str]:
    """Return the environment variables that an entry requires: those without a default."""
    if isinstance(raw, str):
        found = [match for match in _VARIABLE.finditer(raw) if match.group() != PROJECT]
        return frozenset(match["name"] for match in found if match["default"] is None)
    if isinstance(raw, list):
        return frozenset[str]().union(*map(variables_of, _ANY_LIST.validate_python(raw)))
    if isinstance(raw, dict):
        return frozenset[str]().union(*map(variables_of, _ANY_OBJECT.validate_python(raw).values()))
    return frozenset()


def _servers_of(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    for key in SERVERS_KEYS:
        if isinstance(document.get(key), dict):
            return cast("dict[str, Any]", document[key])
    expected = f"{path}: expected an object 'mcpServers' (Claude, Cursor) or 'servers' (VS Code)"
    similar = [key for key in document if _similar(key, SERVERS_KEYS)]
    raise ConfigInvalid(f"{expected} in place of {similar[0]!r}" if similar else expected)


def read_document(path: Path) -> Document:
    """Return the object in a file of JSON, or of JSON with comments and trailing commas; an empty file has none.

    Raises:
        ConfigInvalid: the file cannot be read, is not JSON, or is JSON of another kind.
    """
    try:
        document = parse_json(read_text(path))
    except ValueError as error:
        raise ConfigInvalid(f"{path}: not JSON: {error}") from error
    except RecursionError as error:
        raise ConfigInvalid(f"{path}: nested too deeply") from error
    if not isinstance(document.value, dict):
        raise ConfigInvalid(f"{path}: expected an object with 'mcpServers' (Claude, Cursor) or 'servers' (VS Code)")
    return document


def _server(name: str, entry: Entry, shown: str | None) -> tuple[ServerAnnouncement, Target]:
    own_id = server_id(name)
    labels = entry.labels if own_id == name else {NAME_LABEL: encodable(name)[:_LONGEST_LABEL], **entry.labels}
    if entry.type == "stdio" or (entry.type is None and entry.command is not None):
        if entry.command is None:
            raise ConfigInvalid(f"{name}: a server of type stdio needs a 'command'")
        if entry.auth != OF_SERVICE or entry.oauth != UNREGISTERED:
            raise ConfigInvalid(f"{name}: auth and oauth are for servers behind a URL")
        target: Target = StdioTarget(entry.command, entry.args, entry.env, entry.cwd)
        announced = ServerAnnouncement(server_id=own_id, transport="stdio", groups=entry.groups, labels=labels)
        return announced, target
    if entry.url is None:
        expected = (
            f"type {entry.type} needs a 'url'" if entry.type else "expected a 'command' (stdio) or a 'url' (HTTP)"
        )
        raise ConfigInvalid(f"{name}: {expected}")
    if any(PROJECT in text for text in (entry.url, *entry.headers.values())):
        raise ConfigInvalid(f"{name}: {PROJECT} is for servers with a 'command'; write the URL without it")
    transport: Literal["sse", "streamable-http"] = "sse" if entry.type == "sse" else "streamable-http"
    announced = ServerAnnouncement(server_id=own_id, transport=transport, url=shown, groups=entry.groups, labels=labels)
    return announced, HttpTarget(entry.url, transport, entry.headers)


def _shown(url: str | None, written: str) -> str | None:
    """Return a URL for events and records, without user, password and query, which may contain secrets.

    A path with a variable, as `written` in the file, is removed too.
    """
    if url is None:
        return None
    scheme, rest = url.split("://", 1)
    authority, slash, path = rest.split("?")[0].split("#")[0].partition("/")
    origin = f"{scheme}://{authority.rpartition('@')[2]}"
    return origin if "${" in written.split("?")[0].rpartition("@")[2] else f"{origin}{slash}{path}"


def _expand(value: Any, environ: Mapping[str, str], server: str, where: str = "") -> Any:
    if isinstance(value, str):
        expanded = _expanded(value, environ, server)
        if "\0" in expanded or encodable(expanded) != expanded:  # no program and no server could get it
            raise ConfigInvalid(f"{server}: {where}: expected a text in UTF-8 without NUL")
        return expanded
    if isinstance(value, list):
        return [_expand(item, environ, server, where) for item in _ANY_LIST.validate_python(value)]
    if isinstance(value, dict):
        parts = _ANY_OBJECT.validate_python(value).items()
        return {key: _expand(item, environ, server, where or quoted_name(key)) for key, item in parts}
    return value


def _expanded(text: str, environ: Mapping[str, str], server: str) -> str:
    """Return the text with the variables of the environment."""

    def replacement(match: re.Match[str]) -> str:
        default: str | None = match["default"]
        found = environ.get(match["name"], default)
        if found is None and match.group() == PROJECT:
            return PROJECT  # each client has another
        if found is None:
            raise ConfigInvalid(f"{server}: the environment variable {match['name']} is not set")
        return found

    if leftover := _LEFTOVER.search(_VARIABLE.sub("", text)):
        raise ConfigInvalid(f"{server}: {leftover.group()} is not supported; use ${{VAR}} and the environment")
    return _VARIABLE.sub(replacement, text)
