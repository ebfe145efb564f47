"""A tool as a line of Python: `name(argument: type, optional: type = ...) -> {"field": type}`.

Types follow the input and the output schema of the server, which may declare anything: what is not that simple is
`Any`, and a signature has a bounded length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, cast

from shared.catalog import ToolDefinition, object_of

MAX_PARAMETERS, MAX_OPTIONAL = 12, 4
MAX_NAME_CHARACTERS = 60
# Fields of an object, and the characters of a result and of the type of an argument.
MAX_FIELDS, MAX_RESULT_CHARACTERS, MAX_TYPE_CHARACTERS = 8, 240, 60
MAX_CHOICES, MAX_CHOICE_CHARACTERS = 5, 20
# Objects within objects whose fields are named, and the levels of a schema that are read: references may be circular.
_DEPTHS, _LEVELS = (3, 2, 1), 8
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


def signature(definition: ToolDefinition) -> str:
    """Return the signature of a tool; the result is left out where no output schema has it."""
    declared = definition.as_object()
    parameters = ", ".join(_parameters(object_of(declared.get("inputSchema"))))
    output = object_of(declared.get("outputSchema"))
    result = next((text for text in _results(output) if len(text) <= MAX_RESULT_CHARACTERS), "dict") if output else ""
    return f"{definition.name}({parameters})" + (f" -> {result}" if result else "")


def _results(schema: dict[str, Any]) -> Iterator[str]:
    types = _Types(schema)
    return (types.name(schema, depth) for depth in _DEPTHS)


def _parameters(schema: dict[str, Any]) -> list[str]:
    types, properties = _Types(schema), object_of(schema.get("properties"))

    def shown(name: str) -> str:
        kind = types.name(properties.get(name), 0)
        return f"{cut(name)}: {kind if len(kind) <= MAX_TYPE_CHARACTERS else 'Any'}"

    required = _names(schema.get("required"))
    optional = [name for name in properties if name not in required]
    named = list(map(shown, required[:MAX_PARAMETERS]))
    room = min(MAX_OPTIONAL, MAX_PARAMETERS - len(named))
    named += [f"{shown(name).removesuffix(' | None')} = ..." for name in optional[:room]]
    return named if len(named) == len(required) + len(optional) else [*named, "…"]


class _Types:
    """The Python types of the schemas within one schema, whose references lead to its definitions."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._definitions = object_of(root.get("$defs")) or object_of(root.get("definitions"))

    def name(self, schema: object, depth: int, levels: int = _LEVELS) -> str:
        """Return the type of a schema; the fields of objects are named to this depth."""
        declared = object_of(schema)
        if isinstance(reference := declared.get("$ref"), str):
            declared = object_of(self._definitions.get(reference.rpartition("/")[2]))
        choices, kind = declared.get("enum"), declared.get("anyOf") or declared.get("type")
        if levels == 0:
            return "Any"
        if isinstance(choices, list) and (literal := _literal(cast("list[object]", choices))):
            return literal
        if isinstance(kind, list):
            return self._union(cast("list[object]", kind)[:MAX_CHOICES], declared, depth, levels - 1)
        if kind == "array":
            return f"list[{self.name(declared.get('items'), depth, levels - 1)}]".replace("[Any]", "")
        if kind == "object":
            return self._fields(object_of(declared.get("properties")), depth, levels - 1)
        return _SCALARS.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _union(self, branches: list[object], declared: dict[str, Any], depth: int, levels: int) -> str:
        rest = {key: value for key, value in declared.items() if key not in ("anyOf", "type")}
        parts = [object_of(branch) or {**rest, "type": branch} for branch in branches]
        types = dict.fromkeys(self.name(part, depth, levels) for part in parts)
        return "Any" if "Any" in types or not types else " | ".join(sorted(types, key="None".__eq__))

    def _fields(self, properties: dict[str, Any], depth: int, levels: int) -> str:
        if not properties or depth == 0:
            return "dict"
        first = islice(properties.items(), MAX_FIELDS)
        shown = [f'"{cut(name)}": {self.name(each, depth - 1, levels)}' for name, each in first]
        return f"{{{', '.join(shown if len(properties) <= MAX_FIELDS else [*shown, '…'])}}}"


def _literal(choices: Sequence[object]) -> str:
    is_short = all(isinstance(each, str) and len(each) <= MAX_CHOICE_CHARACTERS for each in choices)
    return f"Literal[{', '.join(map(json.dumps, choices))}]" if is_short and 0 < len(choices) <= MAX_CHOICES else ""


def _names(names: object) -> list[str]:
    named = cast("list[object]", names) if isinstance(names, list) else []
    return list(dict.fromkeys(name for name in named if isinstance(name, str)))


def cut(name: str) -> str:
    """Return a name, cut where it is long."""
    return name if len(name) <= MAX_NAME_CHARACTERS else name[: MAX_NAME_CHARACTERS - 1] + "…"
