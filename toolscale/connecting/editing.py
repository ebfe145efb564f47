"""An edit of a client's text, checked by parsing its result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shared.errors import ConfigInvalid
from toolscale.connecting import jsonc, toml, yaml
from toolscale.importing.formats import UNKNOWN

Entry = Mapping[str, Any]

_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class Syntax:
    """The functions of a file format: `put` and `drop` edit entries of the object at a key of the document.

    New entries stay together and in their order.
    """

    parse: Callable[[str], object]
    put: Callable[[str, str, Mapping[str, Entry]], str]
    drop: Callable[[str, str, str], str]
    rendered: Callable[[str, Mapping[str, Any]], str]


_JSON = Syntax(jsonc.parse, jsonc.put, jsonc.drop, jsonc.rendered)
_BY_SUFFIX = {
    ".toml": Syntax(toml.parse, toml.put, toml.drop, toml.rendered),
    ".yaml": Syntax(yaml.parse, yaml.put, yaml.drop, yaml.rendered),
}


def syntax_of(path: Path) -> Syntax:
    """Return the syntax of a file, by its suffix."""
    return _BY_SUFFIX.get(path.suffix, _JSON)


def servers_in(path: Path, text: str, key: str) -> dict[str, Any]:
    """Return the entries at a key of a text.

    Raises:
        ConfigInvalid: the text has another format.
    """
    servers = _document(path, text).get(key)
    if not isinstance(servers, dict | None):
        raise ConfigInvalid(f"{path}: {key} {UNKNOWN}")
    return cast("dict[str, Any]", servers or {})


def edited(path: Path, text: str, key: str, put: Mapping[str, Entry], drop: Collection[str] = ()) -> str:
    """Return the text with the entries of `put` and without those of `drop`; nothing else changes.

    Raises:
        ConfigInvalid: the text has a form that these edits would not keep.
    """
    before = _document(path, text)
    servers = {name: entry for name, entry in servers_in(path, text, key).items() if name not in drop}
    changed = _edited(syntax_of(path), text, key, put, drop)
    if _plain(_parsed(path, changed), key) != _plain({**before, key: {**servers, **put}}, key):
        names = ", ".join([*put, *drop])
        raise ConfigInvalid(f"{path}: its form cannot be edited without a loss; change {names} by hand")
    return changed


def _edited(syntax: Syntax, text: str, key: str, put: Mapping[str, Entry], drop: Collection[str]) -> str:
    is_dos, mark = text.count("\r\n") == text.count("\n") > 0, _BOM if text.startswith(_BOM) else ""
    changed = text.removeprefix(mark).replace("\r\n", "\n") if is_dos else text.removeprefix(mark)
    for name in drop:
        changed = syntax.drop(changed, key, name)
    if put:
        changed = syntax.put(changed, key, put)
    return mark + (changed.replace("\n", "\r\n") if is_dos else changed)


def _parsed(path: Path, text: str) -> object:
    try:
        return syntax_of(path).parse(text.removeprefix(_BOM))
    except ValueError:
        return None


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        plain = text.removeprefix(_BOM)
        document: object = syntax_of(path).parse(plain) if plain.strip() else {}
    except ValueError as error:
        raise ConfigInvalid(f"{path}: {UNKNOWN}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{path}: {UNKNOWN}")
    return cast("dict[str, Any]", document)


def _plain(document: object, key: str) -> object:
    """Return a document without an empty object at the key, which a text may lack."""
    if not isinstance(document, dict):
        return document
    return {name: value for name, value in cast("dict[str, Any]", document).items() if name != key or value}
