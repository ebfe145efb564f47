"""The tokens of a tool by field: name, description, each parameter, and the other fields that its server sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from query.answers.budget import EXACT_CHARACTERS
from shared.errors import AssetInvalid, CountFailed
from shared.text.tokens import REST, Field, is_estimate, tokens_by_field

if TYPE_CHECKING:
    from shared.catalog import Encoding, Form, IndexedTool


class FieldTokens(NamedTuple):
    """The tokens of a field in the wire form and in the model form, which lacks some fields."""

    field: Field
    sent: int
    model: int | None


class TokenTable(NamedTuple):
    """The tokens of a tool: those of its fields, and the rest. In each form, both together are the tool's count."""

    fields: list[FieldTokens]
    rest: FieldTokens


def token_table(tool: IndexedTool, encoding: Encoding) -> TokenTable | None:
    """Return the tool's tokens by field; None for an estimate, a failed count, or a very long definition."""
    sent, model = fields_of(tool, encoding, "wire"), fields_of(tool, encoding, "model")
    if sent is None or model is None:
        return None
    fields = [FieldTokens(field, tokens, model.get(field)) for field, tokens in sent.items()]
    sent_rest = tool.token_counts[encoding] - sum(sent.values())
    model_rest = tool.model_counts[encoding] - sum(model.values())
    return TokenTable(fields, FieldTokens(REST, sent_rest, model_rest))


def fields_of(tool: IndexedTool, encoding: Encoding, form: Form) -> Mapping[Field, int] | None:
    """Return the tokens of each field in this form, in the server's order, without the JSON around the fields.

    None for an estimate, a failed count, or a definition of more than EXACT_CHARACTERS.
    """
    definition = tool.definition
    if len(definition.wire) > EXACT_CHARACTERS or is_estimate(encoding) or encoding not in tool.counts(form):
        return None
    try:
        tokens = tokens_by_field(definition.as_object() if form == "wire" else definition.for_model(), encoding)
    except (AssetInvalid, CountFailed):
        return None
    return {field: count for field, count in tokens.items() if field != REST}
