"""Entries of servers: a function for the spelling of each client returns the entry of an `mcp.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid

Object = Mapping[str, Any]

OPERATORS_OWN = ("groups", "labels", "disabled")
"""Keys that an operator adds to an entry; a new definition keeps them."""

# Fields of a client that Toolscale cannot replace; without them a request would reach another server, or none.
_UNSUPPORTED = {
    "envFile": "its variables are in a file (envFile); write them in `env` instead",
    "headersHelper": "a program makes its headers (headersHelper)",
}


class NotImportable(Exception):
    """An entry needs a feature of its client; the message is the reason."""


def mcp_json(entry: Object) -> Object:
    """Return an entry of the many clients with an `mcp.json`."""
    return {**entry, "type": "stdio"} if entry.get("type") == "local" else entry


def cline(entry: Object) -> Object:
    """Return an entry of Cline, which takes a URL for SSE."""
    kind = entry.get("type") or entry.get("transportType") or "sse"
    return {**entry, "type": kind} if entry.get("url") and not entry.get("command") else entry


def gemini(entry: Object) -> Object:
    """Return an entry of Gemini CLI, which has a key for each transport."""
    if url := entry.get("httpUrl"):
        entry = {key: value for key, value in entry.items() if key != "httpUrl"} | {"type": "http", "url": url}
    elif entry.get("url"):
        entry = {**entry, "type": entry.get("type") or "sse"}
    return _with_texts(entry, lambda text: re.sub(r"\$([A-Za-z_]\w*)", r"${\1}", text))


def zed(entry: Object) -> Object:
    """Return an entry of Zed."""
    if isinstance(command := entry.get("command"), dict):
        inner = cast("Object", command)
        entry = {**entry, **inner, "command": inner.get("path")}
    if not entry.get("command") and not entry.get("url"):
        raise NotImportable("it is an extension of Zed, which starts it")
    return _connection(entry) | {"disabled": entry.get("enabled") is False}


def codex(entry: Object) -> Object:
    """Return an entry of Codex, which names variables in place of their values."""
    listed: list[Any] = entry.get("env_vars", [])
    names = [each if isinstance(each, str) else str(each["name"]) for each in listed]
    headers = {**entry.get("http_headers", {}), **_references(entry.get("env_http_headers", {}))}
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    env = _references({name: name for name in names}) | {**entry.get("env", {})}
    return _connection(entry) | {"env": env, "headers": headers, "disabled": entry.get("enabled") is False}


def continue_(entry: Object) -> Object:
    """Return an entry of Continue."""
    if entry.get("uses"):
        raise NotImportable("it is a block of Continue's hub")
    if secret := re.search(r"\$\{\{\s*(?:secrets|inputs)\.(\w+)\s*\}\}", str(entry)):
        raise NotImportable(
            f"Continue fills in {secret.group()}; add it by hand with ${{{secret[1]}}}, "
            "and set that variable where Toolscale runs"
        )
    options: Object = entry.get("requestOptions") or {}
    return _connection(_scalars_as_texts(entry)) | {"headers": options.get("headers")}


def goose(entry: Object) -> Object:
    """Return an entry of Goose."""
    kind = entry.get("type")
    if kind not in ("stdio", "sse", "streamable_http"):
        raise NotImportable(f"it is part of Goose ({kind})")
    entry = _scalars_as_texts(entry)
    return {
        "type": "http" if kind == "streamable_http" else kind,
        "command": entry.get("cmd"),
        "args": entry.get("args"),
        "env": _references({name: name for name in entry.get("env_keys") or ()}) | {**(entry.get("envs") or {})},
        "url": entry.get("uri"),
        "headers": entry.get("headers"),
        "disabled": entry.get("enabled") is False,
    }


def opencode(entry: Object) -> Object:
    """Return an entry of opencode."""
    if file := re.search(r"\{file:[^}]*\}", str(entry)):
        raise NotImportable(f"a value is in a file ({file.group()}); write it in `env` or `headers` instead")
    words = entry.get("command") or ()
    found = {
        "command": words[0] if words else None,
        "args": list(words[1:]),
        "env": entry.get("environment"),
        "url": entry.get("url"),
        "headers": entry.get("headers"),
        "oauth": entry.get("oauth"),
        "disabled": entry.get("enabled") is False,
    }
    return _with_texts(found, lambda text: re.sub(r"\{env:(\w+)\}", r"${\1}", text))


def definition(raw: Object) -> dict[str, Any]:
    """Return the connection of a usable entry, without the keys of its client.

    Two entries with the same connection have equal definitions.
    """
    if raw.get("command") and raw.get("type") in (None, "stdio"):
        return {key: raw[key] for key in ("command", "args", "env", "cwd") if raw.get(key)}
    target = {"type": "sse" if raw.get("type") == "sse" else "http", "url": raw.get("url") or raw.get("serverUrl")}
    return target | {key: raw[key] for key in ("headers", "auth", "oauth") if raw.get(key)}


def reject_unsupported(name: str, raw: Object) -> None:
    """Reject an entry that needs a feature of its client.

    Raises:
        ConfigInvalid: it does; the message begins with the server.
    """
    for key, reason in _UNSUPPORTED.items():
        if raw.get(key):
            raise ConfigInvalid(f"{name}: {reason}")


def with_folders(raw: Object, home: Path, project: Path | None) -> dict[str, Any]:
    """Return the entry with the folder variables of Cursor and VS Code replaced."""
    known = {"userHome": str(home), "pathSeparator": os.sep, "/": os.sep}
    if project:
        known |= {"workspaceFolder": str(project), "workspaceFolderBasename": project.name}

    def replaced(text: str) -> str:
        for name, value in known.items():
            text = text.replace(f"${{{name}}}", value)
        return text

    return _with_texts(raw, replaced)


def started_in(entry: dict[str, Any], project: Path | None) -> dict[str, Any]:
    """Return the definition, with the project as working directory if its command has relative paths."""
    if not project or "command" not in entry:
        return entry
    if "cwd" in entry:
        return {**entry, "cwd": str(project / entry["cwd"])}
    words = [entry["command"], *entry.get("args", ())]
    return {**entry, "cwd": str(project)} if any(_is_relative(word, project) for word in words) else entry


def _is_relative(word: str, project: Path) -> bool:
    if word.startswith(("./", "../", ".\\", "..\\")):
        return True
    return not Path(word).is_absolute() and Path(word).suffix != "" and (project / word).is_file()


def _connection(entry: Object) -> dict[str, Any]:
    """Return the parts of an entry that have the names of an `mcp.json`."""
    names = ("type", "command", "args", "env", "cwd", "url", "headers", "oauth")
    return {name: entry[name] for name in names if entry.get(name)}


def _references(variables: Object) -> dict[str, str]:
    return {name: f"${{{variable}}}" for name, variable in variables.items()}


def _with_texts(entry: Object, change: Callable[[str], str]) -> dict[str, Any]:
    """Return an entry with each of its texts changed."""

    def changed(value: object) -> object:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [changed(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            return {name: changed(item) for name, item in cast("Object", value).items()}
        return value

    return {name: changed(value) for name, value in entry.items()}


def _scalars_as_texts(entry: Object) -> Object:
    """Return an entry of YAML, whose arguments and variables may be numbers, with texts."""

    def text(value: object) -> object:
        if isinstance(value, list):
            return [text(item) for item in cast("list[object]", value)]
        if isinstance(value, dict):
            return {str(name): text(item) for name, item in cast("Object", value).items()}
        return str(value).lower() if isinstance(value, bool) else value if value is None else str(value)

    return {name: text(value) if name in ("args", "env", "envs", "headers") else value for name, value in entry.items()}
