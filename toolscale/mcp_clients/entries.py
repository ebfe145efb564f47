"""Entries of servers: a function for the spelling of each client returns the entry of an `mcp.json`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from shared.errors import ConfigInvalid
from shared.upstream.options import OPTION_KEYS, ServerOptions, restricts_tools
from shared.upstream.spellings import SPELLINGS, is_switch

Object = Mapping[str, Any]

OPERATORS_OWN = ("groups", "labels")
"""Keys that an operator adds to an entry; a new definition keeps them."""

# The keys of clients for the tools of a server: names alone that it may have, and names that it may not.
_INCLUDING = (
    *("includeTools", "allowedTools", "enabledTools", "enabled_tools", "allowed_tools"),
    *("available_tools", "tools"),  # Goose, where none are all, and Copilot CLI
)
_EXCLUDING = ("excludeTools", "disabledTools", "disabled_tools", "excludedTools")

# The keys of clients that the functions below read, and those without a meaning for Toolscale.
_UNDERSTOOD = (
    OPTION_KEYS
    | SPELLINGS
    | frozenset(
        (
            *("groups", "labels", "name", "description", "source", "bundled", "uses"),
            *("env_vars", "env_http_headers", "bearer_token_env_var", "requestOptions", "env_keys"),
            *(*_INCLUDING, *_EXCLUDING),
        )
    )
)

# Fields of a client that Toolscale cannot replace; without them a request would reach another server, or none.
_UNSUPPORTED = {
    "envFile": "its variables are in a file (envFile); write them in `env` instead",
    "headersHelper": "a program makes its headers (headersHelper)",
}


class NotImportable(Exception):
    """An entry needs a feature of its client; the message is the reason."""


def mcp_json(entry: Object) -> Object:
    """Return an entry of the many clients with an `mcp.json`. This function and the others get it as `spelled`."""
    return entry


def cline(entry: Object) -> Object:
    """Return an entry of Cline, which takes a URL for SSE, and counts seconds."""
    is_sse = "url" in entry and "command" not in entry and "type" not in entry
    return {**entry, **({"type": "sse"} if is_sse else {}), "timeout": _in_ms(entry.get("timeout"))}


def gemini(entry: Object) -> Object:
    """Return an entry of Gemini CLI, which takes `url` for SSE; `httpUrl` sets the type."""
    if "url" in entry:
        entry = {"type": "sse", **entry}
    return _with_texts(entry, lambda text: re.sub(r"\$([A-Za-z_]\w*)", r"${\1}", text))


def zed(entry: Object) -> Object:
    """Return an entry of Zed."""
    if isinstance(command := entry.get("command"), dict):
        inner = cast("Object", command)
        entry = {**entry, **inner, "command": inner.get("path")}
    if not entry.get("command") and not entry.get("url"):
        raise NotImportable("it is an extension of Zed, which starts it")
    return _connection(entry)


def codex(entry: Object) -> Object:
    """Return an entry of Codex, which names variables in place of their values."""
    listed: list[Any] = _part(entry, "env_vars", list)
    names = [each if isinstance(each, str) else str(each["name"]) for each in listed]
    headers = {**_part(entry, "headers", dict), **_references(_part(entry, "env_http_headers", dict))}
    if token := entry.get("bearer_token_env_var"):
        headers["Authorization"] = f"Bearer ${{{token}}}"
    env = _references({name: name for name in names}) | {**_part(entry, "env", dict)}
    return _connection(entry) | {"env": env, "headers": headers}


def continue_(entry: Object) -> Object:
    """Return an entry of Continue."""
    if entry.get("uses"):
        raise NotImportable("it is a block of Continue's hub")
    if secret := re.search(r"\$\{\{\s*(?:secrets|inputs)\.(\w+)\s*\}\}", str(entry)):
        raise NotImportable(
            f"Continue fills in {secret.group()}; add it by hand with ${{{secret[1]}}}, "
            "and set that variable where Toolscale runs"
        )
    return {"headers": _part(entry, "requestOptions", dict).get("headers")} | _connection(entry)


def goose(entry: Object) -> Object:
    """Return an entry of Goose, which counts seconds."""
    if (kind := entry.get("type")) not in ("stdio", "sse", "http"):
        raise NotImportable(f"it is part of Goose ({kind})")
    env = _references({name: name for name in _part(entry, "env_keys", list)}) | {**_part(entry, "env", dict)}
    return _connection(entry) | {"env": env, "timeout": _in_ms(entry.get("timeout"))}


def opencode(entry: Object) -> Object:
    """Return an entry of opencode."""
    if file := re.search(r"\{file:[^}]*\}", str(entry)):
        raise NotImportable(f"a value is in a file ({file.group()}); write it in `env` or `headers` instead")
    limits = entry.get("timeout")  # a number is the time of a listing
    found = _connection(entry) | {
        "timeout": cast("Object", limits).get("request") if isinstance(limits, dict) else None
    }
    return _with_texts(found, lambda text: re.sub(r"\{env:(\w+)\}", r"${\1}", text))


def restrictions(raw: Object) -> dict[str, list[str]]:
    """Return the tools that an entry of any client includes and excludes, under the keys of an `mcp.json`.

    Raises:
        NotImportable: a key restricts the tools in a way that is not understood.
    """
    unknown = [key for key, value in without_restrictions(raw).items() if restricts_tools(key, value)]
    if unknown:
        raise NotImportable(f"it may restrict its tools by {unknown[0]}, which Toolscale does not know")
    including = [key for key in _INCLUDING if _names(key, raw) is not None]
    if len(including) > 1:
        raise NotImportable(f"it restricts its tools twice, by {' and '.join(including)}")
    tools = raw.get("tools")
    excluded = [name for key in _EXCLUDING for name in _names(key, raw) or ()]
    if isinstance(tools, dict):
        excluded += [name for name, settings in cast("Object", tools).items() if _is_off(name, settings)]
    found = {"includeTools": _names(including[0], raw) if including else None, "excludeTools": excluded or None}
    return {key: names for key, names in found.items() if names is not None}


def _names(key: str, raw: Object) -> list[str] | None:
    """Return the names under a key; None: all tools, or the settings of single ones."""
    value = raw.get(key)
    if value is None or value == ["*"] or (key == "tools" and isinstance(value, dict)):
        return None
    if not isinstance(value, list):
        raise NotImportable(f"its {key} is no list of names")
    return None if key == "available_tools" and not value else cast("list[str]", value)


def without_restrictions(raw: Object) -> Object:
    """Return an entry of a client without the keys that `restrictions` reads."""
    return {key: value for key, value in raw.items() if key not in _INCLUDING + _EXCLUDING}


def _is_off(tool: str, settings: object) -> bool:
    if isinstance(settings, bool):
        return not settings
    keys = cast("Object", settings) if isinstance(settings, dict) else {"": settings}
    if unknown := keys.keys() - {"enabled", "approval_mode"}:
        raise NotImportable(f"it may restrict {tool} by {min(unknown)}, which Toolscale does not know")
    return keys.get("enabled") is False


def denied_tools(prefix: str, denied: Iterable[str]) -> list[str]:
    """Return the tools of a server among the names that a client denies, in which they have this prefix.

    Raises:
        NotImportable: a pattern denies all of them, or its tools cannot be told from those of other servers.
    """
    found: list[str] = []
    for name in denied:
        tool, head = name.removeprefix(prefix), re.split(r"[*?\[]", name)[0]
        if name.startswith(prefix) and tool.strip("*"):
            found.append(tool)
        elif name.startswith(prefix) or name == prefix.rstrip("_:") or (head != name and prefix.startswith(head)):
            raise NotImportable(f"its client denies its tools by {name!r}")
    return found


def option_keys(options: ServerOptions) -> dict[str, Any]:
    """Return these options as an entry of the `mcp.json` has them."""
    included, excluded, timeout_s = options.include_tools, options.exclude_tools, options.timeout_s
    return {
        **({} if included is None else {"includeTools": list(included)}),
        **({"excludeTools": list(excluded)} if excluded else {}),
        # a smaller number would be one of seconds
        **({} if timeout_s is None else {"timeout": max(1_000, round(timeout_s * 1_000))}),
    }


def without_effect(raw: Object) -> frozenset[str]:
    """Return the keys of a client's entry that Toolscale does not take over, and that restrict nothing."""
    return frozenset(
        key
        for key, value in raw.items()
        if key not in _UNDERSTOOD and not is_switch(key) and value not in (None, False, [], {})
    )


def definition(raw: Object) -> dict[str, Any]:
    """Return the connection of a usable entry, without the keys of its client.

    Two entries with the same connection have equal definitions.
    """
    if raw.get("command") and raw.get("type") in (None, "stdio"):
        return {key: raw[key] for key in ("command", "args", "env", "cwd") if raw.get(key)}
    target = {"type": "sse" if raw.get("type") == "sse" else "http", "url": raw.get("url")}
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


def offers_no_more(entry: Object, found: Object) -> bool:
    """Return whether an entry of the `mcp.json` offers no tool of its server that the one found does not."""
    included, excluded = found.get("includeTools"), _excluded(entry)
    return included in (None, entry.get("includeTools")) and all(each in excluded for each in _excluded(found))


def replacing(found: Object, own: Object) -> dict[str, Any]:
    """Return the entry found in place of an entry of the operator, whose own keys and restrictions stay."""
    kept = {key: own[key] for key in ("includeTools", "timeout") if key in own}
    excluded = _excluded(own) + [each for each in _excluded(found) if each not in _excluded(own)]
    return (
        {**kept, **found}
        | {key: own[key] for key in own if key in OPERATORS_OWN or is_switch(key)}
        | ({"excludeTools": excluded} if excluded else {})
    )


def _excluded(entry: Object) -> list[object]:
    names = entry.get("excludeTools")
    return cast("list[object]", names) if isinstance(names, list) else []


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
    names = ("type", "command", "args", "env", "cwd", "url", "headers", "oauth", "timeout", "tool_timeout_sec")
    return {name: entry[name] for name in names if entry.get(name)}


def _in_ms(seconds: object) -> object:
    try:
        return float(str(seconds)) * 1_000
    except ValueError:  # of another kind, which the model of an entry names
        return seconds


_Part = TypeVar("_Part", list[Any], dict[str, Any])


def _part(entry: Object, key: str, kind: type[_Part]) -> _Part:
    """Return the list or the object under a key, an empty one without the key."""
    part: object = entry.get(key, kind())
    if not isinstance(part, kind):
        raise NotImportable(f"its {key} is no {'list' if kind is list else 'object'}")
    return part


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
