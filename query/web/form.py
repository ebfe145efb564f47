"""A form for the parameters of a tool, from its input schema, which is a server's text and may have any form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from query.web.writes import field
from shared.catalog import object_of

PREFIX = "p."
"""Of the names of the fields, so that no parameter is taken for a field of the page."""
MOST_FIELDS = 60
MOST_CHOICES = 200

Kind = Literal["text", "long", "number", "choice", "json"]

# Parameters whose texts often have several lines.
_LONG = re.compile(r"(?i)content|text|body|code|sql|query|prompt|message|html|markdown|data")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A field of a form. `choices` are JSON; `value` is the text in the field."""

    name: str
    kind: Kind
    does: str = ""
    is_required: bool = False
    choices: Sequence[str] = ()
    value: str = ""
    prefix: str = PREFIX

    @property
    def field(self) -> str:
        """Return the name of the field."""
        return self.prefix + self.name


class ParameterInvalid(ValueError):
    """The text of a field is no value of its parameter."""


def parameters_of(schema: object, form: Mapping[str, list[str]] | None = None, prefix: str = PREFIX) -> list[Parameter]:
    """Return the fields for the properties of a schema, the required ones first, filled from a form or by defaults."""
    properties, required = object_of(object_of(schema).get("properties")), object_of(schema).get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    found: list[Parameter] = []
    for name in sorted(properties, key=lambda name: name not in names)[:MOST_FIELDS]:
        wanted = _plain(object_of(properties[name]))
        kind, choices = _kind(name, wanted)
        default = wanted.get("default")
        value = "" if default is None else default if kind in ("text", "long") else json.dumps(default)
        if form is not None:
            value = field(form, prefix + name)
        does = wanted.get("description")
        text = does if isinstance(does, str) else ""
        found.append(Parameter(name, kind, text, name in names, choices, str(value), prefix))
    return found


def values_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the values of filled fields. An empty one is left out, but for a required text.

    Raises:
        ParameterInvalid: a number or a JSON value cannot be read.
    """
    values: dict[str, Any] = {}
    for each in parameters:
        is_text = each.kind in ("text", "long")
        if is_text and (each.value or each.is_required):
            values[each.name] = each.value.replace("\r\n", "\n")
        elif each.value.strip():
            try:
                values[each.name] = json.loads(each.value)
            except (ValueError, RecursionError) as error:
                kind = "a number" if each.kind == "number" else "JSON"
                raise ParameterInvalid(f"{each.name}: expected {kind}") from error
    return values


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without the alternative null, with which generators mark an optional parameter."""
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        others = [each for each in map(object_of, cast("list[object]", alternatives)) if each.get("type") != "null"]
        if len(others) == 1:
            return {**others[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
    return schema


def _kind(name: str, schema: dict[str, Any]) -> tuple[Kind, Sequence[str]]:
    declared, choices = schema.get("type"), schema.get("enum")
    if isinstance(declared, list):
        others = [each for each in cast("list[object]", declared) if each != "null"]
        declared = others[0] if len(others) == 1 else None
    if isinstance(choices, list):
        return "choice", [json.dumps(each) for each in cast("list[object]", choices)[:MOST_CHOICES]]
    match declared:
        case "boolean":
            return "choice", ["true", "false"]
        case "integer" | "number":
            return "number", ()
        case "string":
            return "long" if _LONG.search(name) else "text", ()
        case _:
            return "json", ()
