"""One server in one form, however its client writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid

# How a server is reached in ways that we do not have; without them another server, or none, would be reached.
_BEYOND_US = {
    "envFile": "its variables come from a file (envFile); name them in `env` instead",
    "headersHelper": "its headers come from a program (headersHelper)",
    "auth": "its client signs in to it (auth); Toolscale cannot",
    "oauth": "its client signs in to it (oauth); Toolscale cannot",
}

OPERATORS_OWN = ("groups", "labels", "disabled")
"""What an operator adds to an entry of ours; another definition leaves it as it is."""


def definition(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a usable entry reaches its server, without what only a client understands.

    Two entries that reach it in the same way give the same.
    """
    if raw.get("command") and raw.get("type") in (None, "stdio"):
        return {key: raw[key] for key in ("command", "args", "env", "cwd") if raw.get(key)}
    reached = {"type": "sse" if raw.get("type") == "sse" else "http", "url": raw.get("url") or raw.get("serverUrl")}
    return reached | ({"headers": raw["headers"]} if raw.get("headers") else {})


def refuse_what_we_lack(name: str, raw: Mapping[str, Any]) -> None:
    """Refuse an entry that needs what only its client can do.

    Raises:
        ConfigInvalid: it does; the message begins with the server.
    """
    for key, reason in _BEYOND_US.items():
        if raw.get(key):
            raise ConfigInvalid(f"{name}: {reason}")


def with_folders(raw: Mapping[str, Any], home: Path, project: Path | None) -> dict[str, Any]:
    """Return the entry with the variables for folders replaced, which Cursor and VS Code understand and we do not."""
    known = {"userHome": str(home), "pathSeparator": os.sep, "/": os.sep}
    if project:
        known |= {"workspaceFolder": str(project), "workspaceFolderBasename": project.name}
    return cast("dict[str, Any]", _replaced(dict(raw), {f"${{{name}}}": value for name, value in known.items()}))


def started_in(reached: dict[str, Any], project: Path | None) -> dict[str, Any]:
    """Return the definition, with its project's directory where its command only means something there."""
    if not project or "command" not in reached:
        return reached
    if "cwd" in reached:
        return {**reached, "cwd": str(project / reached["cwd"])}
    words = [reached["command"], *reached.get("args", ())]
    return {**reached, "cwd": str(project)} if any(_is_relative(word, project) for word in words) else reached


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
    """Return a document as it stands in a file of ours, in ASCII."""
    return json.dumps(document, indent=2) + "\n"
