"""Entries of all clients in one form."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid

# Fields of a client that Toolscale cannot replace; without them a request would reach another server, or none.
_UNSUPPORTED = {
    "envFile": "its variables are in a file (envFile); write them in `env` instead",
    "headersHelper": "a program makes its headers (headersHelper)",
    "auth": "its client signs in to it (auth); Toolscale cannot",
    "oauth": "its client signs in to it (oauth); Toolscale cannot",
}

OPERATORS_OWN = ("groups", "labels", "disabled")
"""Keys that an operator adds to an entry; a new definition keeps them."""


def definition(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connection of a usable entry, without the keys of its client.

    Two entries with the same connection have equal definitions.
    """
    if raw.get("command") and raw.get("type") in (None, "stdio"):
        return {key: raw[key] for key in ("command", "args", "env", "cwd") if raw.get(key)}
    target = {"type": "sse" if raw.get("type") == "sse" else "http", "url": raw.get("url") or raw.get("serverUrl")}
    return target | ({"headers": raw["headers"]} if raw.get("headers") else {})


def reject_unsupported(name: str, raw: Mapping[str, Any]) -> None:
    """Reject an entry that needs a feature of its client.

    Raises:
        ConfigInvalid: it does; the message begins with the server.
    """
    for key, reason in _UNSUPPORTED.items():
        if raw.get(key):
            raise ConfigInvalid(f"{name}: {reason}")


def with_folders(raw: Mapping[str, Any], home: Path, project: Path | None) -> dict[str, Any]:
    """Return the entry with the folder variables of Cursor and VS Code replaced."""
    known = {"userHome": str(home), "pathSeparator": os.sep, "/": os.sep}
    if project:
        known |= {"workspaceFolder": str(project), "workspaceFolderBasename": project.name}
    return cast("dict[str, Any]", _replaced(dict(raw), {f"${{{name}}}": value for name, value in known.items()}))


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


def _replaced(value: object, known: Mapping[str, str]) -> object:
    if isinstance(value, str):
        for variable, text in known.items():
            value = value.replace(variable, text)
        return value
    if isinstance(value, list):
        return [_replaced(item, known) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {key: _replaced(item, known) for key, item in cast("dict[str, object]", value).items()}
    return value


def dumped(document: object) -> str:
    """Return a document as the ASCII text of a file."""
    return json.dumps(document, indent=2) + "\n"
