"""Servers in the files of clients, and the entries that cannot be imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from shared.errors import ConfigInvalid
from shared.server_ids import server_id
from shared.settings import Settings
from shared.upstream.documents import Document, read_text
from shared.upstream.mcp_json import read_document, read_entry, variables_of
from shared.upstream.spellings import is_switched_off, spelled
from shared.upstream.target import StdioTarget, Target
from toolscale.mcp_clients import jsonc
from toolscale.mcp_clients.clients import CLIENTS, NAME, Client, ClientFile, ClientForm, Machine
from toolscale.mcp_clients.editing import UNKNOWN, parsed, syntax_of
from toolscale.mcp_clients.entries import (
    OPERATORS_OWN,
    NotImportable,
    Object,
    definition,
    denied_tools,
    option_keys,
    reject_unsupported,
    restrictions,
    started_in,
    with_folders,
    without_effect,
    without_restrictions,
)

# Value of a variable that is not set here; it may be set where Toolscale runs.
_STAND_IN = "http://not-set.invalid"
_INPUT = re.compile(r"\$\{input:([^}]*)\}")


@dataclass(frozen=True, slots=True)
class FoundServer:
    """An importable server with its name and the entry to write; `unset` names its variables that are not set here.

    `without_effect` are keys of its client that the entry leaves out.
    """

    name: str
    entry: dict[str, Any]
    file: ClientFile
    project: Path | None = None
    unset: tuple[str, ...] = ()
    without_effect: frozenset[str] = frozenset()

    @property
    def server_id(self) -> str:
        """Return the id of the server."""
        return server_id(self.name)


@dataclass(frozen=True, slots=True)
class SkippedEntry:
    """An entry or a file that cannot be imported; the reason begins with its name and contains no secret.

    It is an earlier entry or value of a key that the file has twice, too.
    """

    reason: str
    file: ClientFile
    kind: Literal["unusable", "switched off", "repeated"] = "unusable"


@dataclass(frozen=True, slots=True)
class FoundServers:
    """All entries in the order of the files; `read` are the existing files."""

    servers: tuple[FoundServer, ...]
    skipped: tuple[SkippedEntry, ...]
    read: tuple[ClientFile, ...]


@dataclass(frozen=True, slots=True)
class _Section:
    """The servers of one scope in a file, the form of their entries, and the questions of VS Code by their ids.

    `denied` are patterns of the tools that the client never calls, by its own names of tools.
    """

    file: ClientFile
    project: Path | None
    servers: Object = field(default_factory=dict[str, Any])
    form: ClientForm = CLIENTS[Client.CLAUDE]
    disabled: frozenset[str] = frozenset()
    questions: Object = field(default_factory=dict[str, Any])
    denied: tuple[str, ...] = ()


def find_servers(files: Iterable[ClientFile], machine: Machine, settings: Settings) -> FoundServers:
    """Return the entries of these files; an invalid entry or file does not affect the others.

    Raises:
        ConfigInvalid: a file named by the user is unreadable, or has no servers in a known form.
    """
    read = tuple(file for file in files if file.is_required or file.path.is_file())
    found = [each for file in read for each in _found_in(file, machine, settings)]
    servers = tuple(each for each in found if isinstance(each, FoundServer))
    return FoundServers(servers, tuple(each for each in found if isinstance(each, SkippedEntry)), read)


def server_of_entry(name: str, entry: Object, file: ClientFile, machine: Machine, settings: Settings) -> FoundServer:
    """Return the server of an entry that is not yet in this file.

    Raises:
        ConfigInvalid: the entry is invalid, or is Toolscale itself; the message begins with the name.
    """
    return _server(name, entry, _Section(file, file.project), machine, settings)


def _found_in(file: ClientFile, machine: Machine, settings: Settings) -> Iterator[FoundServer | SkippedEntry]:
    try:
        document = _read(file.path)
        sections = list(_sections(document.value, file, machine))
        if file.is_required and not sections:
            raise ConfigInvalid(
                f"{file.path}: this {UNKNOWN}; expected an object 'mcpServers' or 'servers', or a client's settings"
            )
    except ConfigInvalid as error:
        if file.is_required:
            raise
        yield SkippedEntry(str(error), file)
        return
    for key in document.repeated if sections else ():
        yield SkippedEntry(f"{key}: it is there twice, and the last one counts", file, "repeated")
    for section in sections:
        for name, raw in section.servers.items():
            yield _found(name, raw, section, machine, settings)


def _found(
    name: str, raw: object, section: _Section, machine: Machine, settings: Settings
) -> FoundServer | SkippedEntry:
    try:
        if is_switched_off(name, raw) or name in section.disabled:
            return SkippedEntry(f"{name}: it is disabled", section.file, "switched off")
        return _server(name, raw, section, machine, settings)
    except ConfigInvalid as error:
        return SkippedEntry(str(error), section.file)


def _sections(document: Object, file: ClientFile, machine: Machine) -> Iterator[_Section]:
    """Yield the servers of each scope.

    Raises:
        ConfigInvalid: the value of a key has another shape.
    """
    inputs = [*_list(document, "inputs"), *_list(_object(document, "mcp"), "inputs")]
    asked = [cast("Object", each) for each in inputs if isinstance(each, dict)]
    questions = {str(each.get("id")): str(each.get("description") or "") for each in asked}
    for form in _forms_of(file.client, document):
        for key in form.keys + form.unknown:
            value = _value_at(document, key)
            servers = None if key in form.unknown else _by_name(value)
            if servers is None and value is not None:
                raise ConfigInvalid(f"{file.path}: {key} {UNKNOWN}")
            if servers is not None:
                disabled = _disabled(file, document, servers, machine)
                client = Client.OPENCODE if form is CLIENTS[Client.OPENCODE] else file.client
                denied = _denied(client, document, servers, file.project, machine)
                yield _Section(file, file.project, servers, form, disabled, questions, tuple(denied))
    for path in _object(document, "projects"):  # Claude Code's servers of each project
        project = _object(_object(document, "projects"), path)
        servers = _object(project, "mcpServers")
        disabled = _texts(project, "disabledMcpServers") | _disabled(file, document, servers, machine)
        denied = _denied(Client.CLAUDE, document, servers, Path(path), machine)
        yield _Section(file, Path(path), servers, disabled=disabled, questions=questions, denied=tuple(denied))


def _read(path: Path) -> Document:
    """Return the object in a file of JSON (with comments), TOML or YAML, by its suffix.

    Raises:
        ConfigInvalid: the file cannot be read, or has another format.
    """
    return read_document(path) if syntax_of(path) is jsonc else Document(parsed(path, read_text(path)))


def _forms_of(client: Client | None, document: Object) -> list[ClientForm]:
    """Return the form of a client, or each form that a document may have."""
    if client:
        return [CLIENTS[client]]
    holder = _object(document, "mcp")
    kinds = [_object(holder, name).get("type") for name in holder]
    possible = [Client.CLAUDE, Client.ZED, Client.CODEX, Client.GOOSE]
    if "local" in kinds or "remote" in kinds:
        possible.append(Client.OPENCODE)
    return [CLIENTS[each] for each in possible]


def _by_name(servers: object) -> Object | None:
    """Return the entries of an object, or of a list of named objects; None for another value."""
    if isinstance(servers, dict):
        return cast("Object", servers)
    if not isinstance(servers, list):
        return None
    listed = cast("list[object]", servers)
    entries = [cast("Object", entry) for entry in listed if isinstance(entry, dict)]
    named = {str(entry.get("name") or entry.get("uses")): entry for entry in entries}
    return named if len(named) == len(listed) and "None" not in named else None


# --- what a client switched off elsewhere in its files ---


def _disabled(file: ClientFile, document: Object, servers: Object, machine: Machine) -> frozenset[str]:
    """Return the servers of a file that the user switched off, beside their entries."""
    if file.client is Client.GEMINI:
        chosen = _object(document, "mcp")
        others = servers.keys() - _texts(chosen, "allowed") if isinstance(chosen.get("allowed"), list) else set[str]()
        switches = _settings(machine.home / ".gemini" / "mcp-server-enablement.json")
        off = {name for each in switches for name in each if is_switched_off(name, each[name])}
        return _texts(chosen, "excluded") | others | {name for name in servers if name.lower() in off}
    if file.client is not Client.CLAUDE:
        return frozenset()
    settings = _settings_of_claude_code(file.project, machine)
    rules = [cast("Object", rule) for each in settings for rule in _list(each, "deniedMcpServers")]
    denied = frozenset(name for name, raw in servers.items() for rule in rules if _denies(rule, name, raw))
    if file.project:  # of its `.mcp.json`; Claude Code stores them in the user's file, too
        state = [_object(_object(each, "projects"), str(file.project)) for each in _settings(_state_of_claude(machine))]
        denied |= frozenset[str]().union(*(_texts(each, "disabledMcpjsonServers") for each in [*state, *settings]))
    return denied


def _denies(rule: object, name: str, raw: object) -> bool:
    """Return whether a rule of Claude Code denies a server, by its name, its URL or its command."""
    if not isinstance(rule, dict) or not isinstance(raw, dict):
        return False
    rule, entry = cast("Object", rule), cast("Object", raw)
    command = [entry.get("command"), *_list(entry, "args")]
    by_url = "url" in entry and fnmatchcase(str(entry["url"]), str(rule.get("serverUrl") or ""))
    return rule.get("serverName") == name or rule.get("serverCommand") == command or by_url


def _denied(
    client: Client | None, document: Object, servers: Object, project: Path | None, machine: Machine
) -> list[str]:
    """Return patterns of the tools that a client never calls, by its own names of tools.

    Raises:
        ConfigInvalid: a file of its settings cannot be read.
    """
    match client:
        case Client.CLAUDE:
            settings = _settings_of_claude_code(project, machine)
            return sorted(name for each in settings for name in _texts(_object(each, "permissions"), "deny"))
        case Client.CURSOR:
            files = [
                machine.home / ".cursor" / "cli-config.json",
                *([project / ".cursor" / "cli.json"] if project else []),
            ]
            rules = [rule for each in _settings(*files) for rule in _texts(_object(each, "permissions"), "deny")]
            return [re.sub(r"\s*,\s*", ":", rule).removesuffix(")") for rule in rules]
        case Client.GEMINI:
            names = _texts(_object(document, "tools"), "exclude") | _texts(document, "excludeTools")
            plain = [name for name in names if not ("__" in name or "(" in name)]  # a brace: a command of its shell
            of_all = [f"{server}__{name.removeprefix(f'mcp_{server}_')}" for server in servers for name in plain]
            return [*of_all, *(name for name in names if "__" in name)]
        case Client.GOOSE:
            users = _settings(machine.folders["goose"] / "permission.yaml")
            principals = [_object(user, name) for user in users for name in user]
            return [name for each in principals for name in _texts(each, "never_allow")]
        case Client.ZED:
            return list(_denied_by_zed(_object(document, "agent")))
        case Client.OPENCODE:
            permissions = _object(document, "permission")
            off = [name for name, is_on in _object(document, "tools").items() if is_on is False]
            return off + [name for name, action in permissions.items() if action in ("deny", {"*": "deny"})]
        case _:
            return []


def _denied_by_zed(agent: Object) -> Iterator[str]:
    permissions = _object(agent, "tool_permissions")
    if permissions.get("default") == "deny":
        yield "mcp:*"
    tools = _object(permissions, "tools")
    for name in tools:
        if _object(tools, name).get("default") == "deny" or _list(_object(tools, name), "always_deny"):
            yield name
    profile = _object(_object(agent, "profiles"), str(agent.get("default_profile") or "write"))
    servers = _object(profile, "context_servers")
    for server in servers:
        offered = _object(_object(servers, server), "tools")
        yield from (f"mcp:{server}:{tool}" for tool, is_on in offered.items() if is_on is False)


def _settings_of_claude_code(project: Path | None, machine: Machine) -> list[Object]:
    folders = [machine.folders["claude_settings"], *([project / ".claude"] if project else [])]
    return _settings(*(folder / name for folder in folders for name in ("settings.json", "settings.local.json")))


def _state_of_claude(machine: Machine) -> Path:
    return machine.folders["claude"] / ".claude.json"


def _settings(*files: Path) -> list[Object]:
    return [_read(file).value for file in files if file.is_file()]


def _server(name: str, raw: object, section: _Section, machine: Machine, settings: Settings) -> FoundServer:
    """Return the server with the entry to write.

    Raises:
        ConfigInvalid: it cannot be imported.
    """
    raw, written = spelled(name, raw)
    try:
        entry = _selecting(name, raw, section)
    except NotImportable as error:
        raise ConfigInvalid(f"{name}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # a part of the entry has another type
        raise ConfigInvalid(f"{name}: this {UNKNOWN}") from error
    entry = with_folders(entry, machine.home, section.project)
    reject_unsupported(name, entry)
    _reject_questions(name, entry, section.questions)
    variables = dict.fromkeys(variables_of(entry), _STAND_IN) | dict(machine.environ)
    _, target, options = read_entry(name, entry, variables, written)
    if _is_toolscale(server_id(name), target, settings):
        raise ConfigInvalid(f"{name}: it is Toolscale itself")
    own = {key: entry[key] for key in OPERATORS_OWN if entry.get(key)} | option_keys(options)
    entry = started_in(definition(entry), section.project) | own
    unset = tuple(sorted(variables_of(entry) - machine.environ.keys()))
    return FoundServer(name, entry, section.file, section.project, unset, without_effect(raw))


def _selecting(name: str, raw: Object, section: _Section) -> dict[str, Any]:
    """Return the entry in the form of an `mcp.json`, with the restrictions of its tools.

    Raises:
        NotImportable: it cannot be imported.
    """
    selected = restrictions(raw)
    excluded = selected.get("excludeTools", [])
    for spelling in dict.fromkeys((name, re.sub(r"[^A-Za-z0-9_-]", "_", name))):
        excluded += denied_tools(section.form.tool_prefix.format(spelling), section.denied)
    read = {key: value for key, value in section.form.read(without_restrictions(raw)).items() if value is not None}
    return read | selected | ({"excludeTools": excluded} if excluded else {})


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


# --- Toolscale itself, whose import would index its own tools ---

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "host.docker.internal")  # noqa: S104  # compared, not bound
_PROGRAM = re.compile(r"toolscale(\.exe)?([\[=<>~!:@].*)?", re.IGNORECASE)


def _is_toolscale(server_id: str, target: Target, settings: Settings) -> bool:
    """Return whether an entry is Toolscale: by its name, its command or its address."""
    if server_id.lower() == NAME or (isinstance(target, StdioTarget) and _starts_toolscale(target)):
        return True
    own = {(host.lower(), settings.port) for host in (*_LOOPBACK, settings.host, *settings.allowed_http_hosts)}
    if public := _address(settings.public_url or ""):
        own.add(public)
    texts = [word for text in target.args for word in text.split()] if isinstance(target, StdioTarget) else [target.url]
    found = [address for address in map(_address, texts) if address]  # a bridge has its URL among the arguments
    return any(address in own or NAME in address[0].split(".") for address in found)


def _starts_toolscale(target: StdioTarget) -> bool:
    words = [word for text in (target.command, *target.args) for word in text.split()]
    programs = [at for at, word in enumerate(words) if _PROGRAM.fullmatch(re.split(r"[\\/]", word)[-1])]
    if programs and "serve" in words[programs[0] + 1 :]:
        return True
    return ("-m", "query") in pairwise(words) and "--stdio" in words


def _address(url: str) -> tuple[str, int] | None:
    """Return the host and the port of a URL, None for another text."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    return parts.hostname.lower(), port or (443 if parts.scheme == "https" else 80)


# --- parts of a document, of which each may have another type ---


def _value_at(document: Object, dotted: str) -> object:
    value: object = document
    for key in dotted.split("."):
        value = cast("Object", value).get(key) if isinstance(value, dict) else None
    return value


def _object(holder: Object, key: str) -> Object:
    found = holder.get(key)
    return cast("Object", found) if isinstance(found, dict) else {}


def _list(holder: Object, key: str) -> list[object]:
    found = holder.get(key)
    return cast("list[object]", found) if isinstance(found, list) else []


def _texts(holder: Object, key: str) -> frozenset[str]:
    return frozenset(each for each in _list(holder, key) if isinstance(each, str))
