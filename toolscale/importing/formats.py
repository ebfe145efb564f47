"""Formats of clients: the key of the servers in a file, and a function from an entry to one of an `mcp.json`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from shared.errors import ConfigInvalid
from shared.upstream.mcp_json import SERVERS_KEYS, read_document
from toolscale.importing.client_files import Client

Object = Mapping[str, Any]

UNKNOWN = "is not a format that Toolscale reads"


class NotImportable(Exception):
    """An entry needs a feature of its client; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Format:
    """The dotted `keys` of the servers in a document, and the function for their entries.

    `unknown` are keys of earlier formats of the client, which Toolscale cannot read.
    """

    keys: tuple[str, ...]
    entry: Callable[[Object], Object]
    unknown: tuple[str, ...] = ()


def read_any(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON (with comments), TOML or YAML, by its suffix.

    Raises:
        ConfigInvalid: the file cannot be read, or has another format.
    """
    parse = _PARSERS.get(path.suffix.lower())
    if parse is None:
        return read_document(path)
    try:
        document = parse(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error.strerror or error}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigInvalid(f"{path}: {UNKNOWN}: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict | None):
        raise ConfigInvalid(f"{path}: {UNKNOWN}")
    return cast("dict[str, Any]", document or {})


_PARSERS: Mapping[str, Callable[[str], object]] = {
    ".toml": tomllib.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
}


def formats_of(client: Client | None, document: Object) -> Iterable[Format]:
    """Return the format of a client, or each format that a document may have."""
    if client:
        return (_FORMATS.get(client, MCP_JSON),)
    holder = value_at(document, "mcp")
    entries = cast("Object", holder).values() if isinstance(holder, dict) else ()
    is_opencode = any(isinstance(entry, dict) and entry.get("type") in ("local", "remote") for entry in entries)
    return (MCP_JSON, _ZED, _CODEX, _GOOSE, *((_OPENCODE,) if is_opencode else ()))


def value_at(document: Object, dotted: str) -> object:
    """Return the value at these keys; None if it is absent."""
    value: object = document
    for key in dotted.split("."):
        value = cast("Object", value).get(key) if isinstance(value, dict) else None
    return value


def by_name(servers: object) -> Object | None:
    """Return the entries of an object, or of a list of named objects; None for another value."""
    if isinstance(servers, dict):
        return cast("Object", servers)
    if not isinstance(servers, list):
        return None
    entries = [cast("Object", entry) for entry in cast("list[object]", servers) if isinstance(entry, dict)]
    named = {str(entry.get("name") or entry.get("uses")): entry for entry in entries}
    return named if len(named) == len(cast("list[object]", servers)) and "None" not in named else None


def _mcp_json(entry: Object) -> Object:
    return {**entry, "type": "stdio"} if entry.get("type") == "local" else entry


def _cline(entry: Object) -> Object:
    kind = entry.get("type") or entry.get("transportType") or "sse"
    return {**entry, "type": kind} if entry.get("url") and not entry.get("command") else entry


def _gemini(entry: Object) -> Object:
    if url := entry.get("httpUrl"):
        entry = {key: value for key, value in entry.items() if key != "httpUrl"} | {"type": "http", "url": url}
    elif entry.get("url"):
        entry = {**entry, "type": entry.get("type") or "sse"}
    return cast("Object", _replaced(r"\$([A-Za-z_]\w*)", r"${\1}", entry))


def _zed(entry: Object) -> Object:
    if isinstance(command := entry.get("command"), dict):
        inner = cast("Object", command)
        entry = {**entry, **inner, "command": inner.get("path")}
    if not entry.get("command") and not entry.get("url"):
        raise NotImportable("it is an extension of Zed, which starts it")
    return _connection(entry) | {"disabled": entry.get("enabled") is False}


def _codex(entry: Object) -> Object:
    listed: list[Any] = entry.get("env_vars", [])
    names = [each if isinstance(each, str) else str(each["name"]) for each in listed]
    headers = {**entry.get("http_headers", {}), **_references(entry.get("env_http_headers", {}))}
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    env = _references({name: name for name in names}) | {**entry.get("env", {})}
    return _connection(entry) | {"env": env, "headers": headers, "disabled": entry.get("enabled") is False}


def _continue(entry: Object) -> Object:
    if entry.get("uses"):
        raise NotImportable("it is a block of Continue's hub")
    if secret := re.search(r"\$\{\{\s*(?:secrets|inputs)\.(\w+)\s*\}\}", str(entry)):
        raise NotImportable(
            f"Continue fills in {secret.group()}; add it by hand with ${{{secret[1]}}}, "
            "and set that variable where Toolscale runs"
        )
    return _connection(_texts(entry)) | {"headers": value_at(entry, "requestOptions.headers")}


def _goose(entry: Object) -> Object:
    kind = entry.get("type")
    if kind not in ("stdio", "sse", "streamable_http"):
        raise NotImportable(f"it is part of Goose ({kind})")
    entry = _texts(entry)
    return {
        "type": "http" if kind == "streamable_http" else kind,
        "command": entry.get("cmd"),
        "args": entry.get("args"),
        "env": _references({name: name for name in entry.get("env_keys") or ()}) | {**(entry.get("envs") or {})},
        "url": entry.get("uri"),
        "headers": entry.get("headers"),
        "disabled": entry.get("enabled") is False,
    }


def _opencode(entry: Object) -> Object:
    if file := re.search(r"\{file:[^}]*\}", str(entry)):
        raise NotImportable(f"a value is in a file ({file.group()}); write it in `env` or `headers` instead")
    words = entry.get("command") or ()
    entry = {
        "command": words[0] if words else None,
        "args": list(words[1:]),
        "env": entry.get("environment"),
        "url": entry.get("url"),
        "headers": entry.get("headers"),
        "oauth": entry.get("oauth"),
        "disabled": entry.get("enabled") is False,
    }
    return cast("Object", _replaced(r"\{env:(\w+)\}", r"${\1}", entry))


def _connection(entry: Object) -> dict[str, Any]:
    """Return the parts of an entry that have the names of an `mcp.json`."""
    names = ("type", "command", "args", "env", "cwd", "url", "headers", "oauth")
    return {name: entry[name] for name in names if entry.get(name)}


def _references(variables: Object) -> dict[str, str]:
    return {name: f"${{{variable}}}" for name, variable in variables.items()}


def _texts(entry: Object) -> Object:
    """Return an entry of YAML, whose arguments and variables may be numbers, with texts."""
    return {
        name: _text(value) if name in ("args", "env", "envs", "headers") else value for name, value in entry.items()
    }


def _text(value: object) -> object:
    if isinstance(value, list):
        return [_text(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {str(name): _text(item) for name, item in cast("Object", value).items()}
    return str(value).lower() if isinstance(value, bool) else value if value is None else str(value)


def _replaced(pattern: str, by: str, value: object) -> object:
    if isinstance(value, str):
        return re.sub(pattern, by, value)
    if isinstance(value, list):
        return [_replaced(pattern, by, item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _replaced(pattern, by, item) for name, item in cast("Object", value).items()}
    return value


MCP_JSON = Format((*SERVERS_KEYS, *(f"mcp.{key}" for key in SERVERS_KEYS)), _mcp_json)
_ZED = Format(("context_servers",), _zed)
_CODEX = Format(("mcp_servers",), _codex)
_GOOSE = Format(("extensions",), _goose)
_OPENCODE = Format(("mcp",), _opencode)
_FORMATS: Mapping[Client, Format] = {
    Client.CLINE: Format(("mcpServers",), _cline),
    Client.GEMINI: Format(("mcpServers",), _gemini),
    Client.ZED: _ZED,
    Client.CODEX: _CODEX,
    Client.CONTINUE: Format(("mcpServers",), _continue, ("experimental.modelContextProtocolServers",)),
    Client.GOOSE: _GOOSE,
    Client.OPENCODE: _OPENCODE,
}
