"""`toolscale diff` and `approve`: changed definitions of a server's tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import unified_diff
from typing import Annotated, Any

import typer

from shared.quoting import printable
from toolscale.client.service import open_operations
from toolscale.commands.options import DataDirOption, JsonOption, ServerArgument, TokenOption, UrlOption
from toolscale.console import print_json, print_lines

Object = dict[str, Any]

ToolsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="TOOL", help="Names of its tools; none: all.", show_default=False)
]


def diff(
    server: ServerArgument,
    tools: ToolsArgument = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Compare the accepted definitions of a server's tools with the current ones."""
    with open_operations(url, token, data_dir) as operations:
        found = operations.changes(server, tools or [])
    if as_json:
        print_json(found)
        return
    for change in found["changes"]:
        kind, is_held = "new" if change["is_new"] else "changed", "held" if found["held"] else "served"
        head = f"{change['tool']}@{change['digest']}: {kind} since {change['changed_since']}, {is_held}"
        print_lines(*map(printable, (head, *lines_of(server, change), "")))
    if not found["changes"]:
        print_lines(f"{printable(server)} has no changed definitions.")


def approve(
    server: ServerArgument,
    tools: ToolsArgument = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Accept the changed definitions of a server's tools, as diff shows them; its next reconciliation serves them.

    TOOL@DIGEST, as diff prints it, accepts a tool only if it did not change again since.
    """
    with open_operations(url, token, data_dir) as operations:
        approval = operations.approve(server, tools or [])
    request = approval["request"]
    if request:
        request = {"server_id": server, "status": request["status"], "generation": request["desired"]}
    if as_json:
        print_json(approval | {"request": request})
        return
    names = ", ".join(approval["accepted"]) or "nothing; it has no changed definitions"
    print_lines(printable(f"{server}: accepted {names}."))
    if request:
        print_lines(printable(f"{server}: recorded as generation {request['generation']}; it will be reconciled."))


def lines_of(server: str, change: Object) -> list[str]:
    """Return a unified diff of the accepted and the current definition, with escapes for invisible characters.

    Keys are sorted, and each line of a text is a line of the diff.
    """
    if change["current"] is None or (change["accepted"] is None and not change["is_new"]):
        return ["(The definitions are not stored, since the changes of this server are too large.)"]
    label = f"{server}:{change['tool']}"
    sides = (f"{label} accepted", f"{label} current")
    return list(unified_diff(_lines(change["accepted"]), _lines(change["current"]), *sides, lineterm=""))


def _lines(definition: Object | None) -> list[str]:
    """Return the definition as indented JSON with sorted keys, and a line for each line of a text."""
    if definition is None:
        return []
    text = json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False)
    parts = (part for line in text.splitlines() for part in _parts(line))
    return ["".join(sign if sign.isprintable() else f"\\u{ord(sign):04x}" for sign in part) for part in parts]


def _parts(line: str) -> Iterator[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    first, *others = line.replace("\\\\", "\\\\\0").split("\\n")
    for part in (first, *(f"{indent}  {other}" for other in others)):
        yield part.replace("\\\\\0", "\\\\")
