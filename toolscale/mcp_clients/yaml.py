"""Minimal edits of YAML: the servers are the lines below a key of the first column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml
from typing_extensions import override


def parse(text: str) -> object:
    """Return the value of a text; raise ValueError if it has none."""
    try:
        return yaml.load(text, _Loader) or {}  # noqa: S506  # a safe loader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def put(text: str, key: str, entries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text with these entries below `key`, as its first."""
    for name in entries:
        if re.search(_entry(name), text, re.MULTILINE):
            text = drop(text, key, name)
    heading = re.compile(rf"^{re.escape(key)}:[ \t]*(?:\{{\}}|null|~)?[ \t]*(#.*)?\n", re.MULTILINE)
    if not heading.search(text) and key not in (yaml.safe_load(text) or {}):  # a second key would hide the first
        text += f"{'' if not text or text.endswith(chr(10)) else chr(10)}{key}:\n"
    found = heading.search(text)
    if not found:
        return text  # the check of the result rejects it
    first = re.match(r"(?:\s*\n|\s*#.*\n)*([ \t]+)\S", text[found.end() :])
    lines = _dumped(entries).splitlines(keepends=True)
    body = "".join((first[1] if first else "  ") + line for line in lines)
    comment = f"  {found[1]}" if found[1] else ""
    return f"{text[: found.start()]}{key}:{comment}\n{body}{text[found.end() :]}"


def drop(text: str, key: str, name: str) -> str:
    """Return the text without the lines of this entry below `key`."""
    start = re.search(rf"^{re.escape(key)}:", text, re.MULTILINE)
    found = re.compile(_entry(name), re.MULTILINE).search(text, start.end() if start else 0)
    if not found:
        return text  # the check of the result rejects it
    indent = found[1]
    end = re.compile(rf"^(?!{indent}[ \t]|\s*$)", re.MULTILINE).search(text, found.end())
    return text[: found.start()] + (text[end.start() :] if end else "")


def rendered(key: str, servers: Mapping[str, Any]) -> str:
    """Return these servers as a document."""
    return _dumped({key: servers})


class _Loader(yaml.SafeLoader):
    """As the loaders of the clients, it rejects a key that a mapping has twice."""

    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # before the keys of an anchor are merged, which those of the node replace
        node = super().compose_mapping_node(anchor)
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def _entry(name: str) -> str:
    return rf"^([ \t]+)[\"']?{re.escape(name)}[\"']?:(?=\s)"


def _dumped(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=10_000)
