"""An edit of a client's text, checked by parsing its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from shared.errors import ConfigInvalid
from shared.upstream.documents import hint
from toolscale.mcp_clients import jsonc, toml, yaml

UNKNOWN = "is not a format that Toolscale reads"

Entry = Mapping[str, Any]

_BOM = "\ufeff"


class Syntax(Protocol):
    """A module that edits a file format: entries of the object at a key of the document."""

    def parse(self, text: str, /) -> object:
        """Return the value of a text; raise ValueError if it has none."""
        ...

    def put(self, text: str, key: str, entries: Mapping[str, Entry], /) -> str:
        """Return the text with these entries; new ones stay together and in their order."""
        ...

    def drop(self, text: str, key: str, name: str, /) -> str:
        """Return the text without this entry."""
        ...

    def rendered(self, key: str, servers: Entry, /) -> str:
        """Return these servers as a document."""
        ...


def syntax_of(path: Path) -> Syntax:
    """Return the syntax of a file, by its suffix."""
    by_suffix: dict[str, Syntax] = {".toml": toml, ".yaml": yaml, ".yml": yaml}
    return by_suffix.get(path.suffix.lower(), jsonc)


def parsed(path: Path, text: str) -> dict[str, Any]:
    """Return the object of a file's text; that of an empty one is empty.

    Raises:
        ConfigInvalid: the text has another format.
    """
    plain = text.removeprefix(_BOM)
    try:
        document: object = syntax_of(path).parse(plain) if plain.strip() else {}
    except ValueError as error:
        reason = " ".join(str(error).split())
        cure = "" if syntax_of(path) is jsonc else hint(plain, reason)
        raise ConfigInvalid(f"{path}: {UNKNOWN}: {reason}{cure}") from error
    except RecursionError as error:
        raise ConfigInvalid(f"{path}: nested too deeply") from error
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}: {UNKNOWN}")
    return cast("dict[str, Any]", document)


def servers_in(path: Path, text: str, key: str) -> dict[str, Any]:
    """Return the entries at a key of a text.

    Raises:
        ConfigInvalid: the text has another format.
    """
    servers = parsed(path, text).get(key)
    if not isinstance(servers, dict | None):
        raise ConfigInvalid(f"{path}: {key} {UNKNOWN}")
    return cast("dict[str, Any]", servers or {})


def edited(path: Path, text: str, key: str, put: Mapping[str, Entry], drop: Collection[str] = ()) -> str:
    """Return the text with the entries of `put` and without those of `drop`; nothing else changes.

    Raises:
        ConfigInvalid: the text has a form that these edits would not keep.
    """
    servers = {name: entry for name, entry in servers_in(path, text, key).items() if name not in drop}
    expected = {**parsed(path, text), key: {**servers, **put}}
    mark = _BOM if text.startswith(_BOM) else ""
    is_dos = text.count("\r\n") == text.count("\n") > 0
    changed = text.removeprefix(mark).replace("\r\n", "\n") if is_dos else text.removeprefix(mark)
    syntax = syntax_of(path)
    for name in drop:
        changed = syntax.drop(changed, key, name)
    if put:
        changed = syntax.put(changed, key, put)
    changed = mark + (changed.replace("\n", "\r\n") if is_dos else changed)
    try:
        is_good = _without_empty(parsed(path, changed), key) == _without_empty(expected, key)
    except ConfigInvalid:
        is_good = False
    if not is_good:
        names = ", ".join([*put, *drop])
        raise ConfigInvalid(f"{path}: its form cannot be edited without a loss; change {names} by hand")
    return changed


def _without_empty(document: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return a document without an empty object at the key, which a text may lack."""
    return {name: value for name, value in document.items() if name != key or value}
