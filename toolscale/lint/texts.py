"""Rules on the descriptions of a tool and of its required parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from shared.text.bm25 import prose_terms, words
from shared.text.leaner import DEFINITIONS, labels
from shared.text.tokens import parameters_of
from toolscale.lint.findings import Finding, broken

if TYPE_CHECKING:
    from shared.catalog import ToolDefinition

# References lead from one to the next at most so often; a cycle has no end.
_MAX_REFERENCES = 8


def text_findings(tool: ToolDefinition) -> Iterator[Finding]:
    """Yield the findings on the texts that a model reads; it reads no title."""
    fields = tool.for_model()
    description = fields.get("description")
    if not _is_text(description):
        yield broken("missing-tool-description", tool.name, "a model sees only the name")
    elif not set(prose_terms(str(description))) - set(prose_terms(words(tool.name))):
        yield broken("unclear-description", tool.name, "the description repeats the name")
    schema, documented = _object(fields.get("inputSchema")), labels(tool.description)
    for name, parameter in parameters_of(tool).items():
        if name in _required(schema) and not (_is_described(parameter, schema) or name in documented):
            yield broken("missing-parameter-description", tool.name, "it has no description", name)


def _required(schema: Mapping[str, Any]) -> list[object]:
    required = schema.get("required")
    return cast("list[object]", required) if isinstance(required, list) else []


def _is_described(parameter: object, root: Mapping[str, Any]) -> bool:
    """Return whether the schema, or one that it refers to, has a description."""
    for _ in range(_MAX_REFERENCES):
        schema = _object(parameter)
        if _is_text(schema.get("description")):
            return True
        parameter = _referred(schema, root)
    return False


def _referred(schema: Mapping[str, Any], root: Mapping[str, Any]) -> object:
    """Return the definition that the schema refers to, or else the only schema in its `allOf` or `anyOf`."""
    key, _, name = str(schema.get("$ref", "")).removeprefix("#/").partition("/")
    if key in DEFINITIONS:
        return _object(root.get(key)).get(name)
    listed = (cast("list[object]", schema[key]) for key in ("allOf", "anyOf") if isinstance(schema.get(key), list))
    return next((schemas[0] for schemas in listed if len(schemas) == 1), None)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
