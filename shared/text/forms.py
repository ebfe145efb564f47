"""The forms of a tool over which tokens are counted.

The wire form is the JSON of `tools/list`. The model form is what a model API receives, in the shape of a profile:
Toolscale counts `generic`. `anthropic` renames a key, and `openai` wraps each tool; both are for comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from shared.catalog import Encoding, IndexedTool, ToolDefinition, ToolFeatures
from shared.text.tokens import count_all, estimate

if TYPE_CHECKING:
    from shared.text.tokens import Counter

Profile = Literal["generic", "anthropic", "openai"]
PROFILES: tuple[Profile, ...] = ("generic", "anthropic", "openai")

# The profile of all stored counts and of every number that names no other.
PROFILE: Profile = "generic"

Counts = dict[Encoding, int]


def json_text(value: object) -> str:
    """Return a JSON value as the shortest text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def model_text(definition: ToolDefinition, profile: Profile = PROFILE) -> str:
    """Return the model form of a tool as compact JSON."""
    return json_text(_in_shape(definition.for_model(), profile))


def estimate_tool(server_id: str, definition: ToolDefinition) -> int:
    """Estimate a tool's tokens from its qualified name, its description and the JSON of its input schema."""
    fields = definition.for_model()
    schema = json_text(fields["inputSchema"]) if "inputSchema" in fields else ""
    return estimate(f"{server_id}:{definition.name} {fields.get('description') or ''} {schema}")


def count_forms(definition: ToolDefinition, counters: Mapping[Encoding, Counter]) -> tuple[Counts, Counts]:
    """Return the counts of the wire and of the model form; an encoding that fails for either is in neither."""
    wire, model = count_all([definition.wire, model_text(definition)], counters)
    counted = wire.keys() & model.keys()
    return _only(wire, counted), _only(model, counted)


def indexed_tool(
    server_id: str,
    definition: ToolDefinition,
    digest: str,
    features: ToolFeatures,
    groups: frozenset[str] = frozenset(),
) -> IndexedTool:
    """Return a server's tool with its counts; the estimate, which reads the server's id, is added here."""
    estimated: Counts = {"heuristic": estimate_tool(server_id, definition)}
    wire: Counts = {**features.token_counts, **estimated}
    model: Counts = {**features.model_counts, **estimated}
    return IndexedTool(server_id, definition, digest, wire, groups, model_counts=model)


def _in_shape(fields: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    if profile == "generic":
        return dict(fields)
    schema_key = "input_schema" if profile == "anthropic" else "parameters"
    renamed = {schema_key if key == "inputSchema" else key: value for key, value in fields.items()}
    return renamed if profile == "anthropic" else {"type": "function", "function": renamed}


def _only(counts: Counts, encodings: set[Encoding]) -> Counts:
    return {encoding: count for encoding, count in counts.items() if encoding in encodings}
