"""The content blocks of a result: what a model reads of them, and how they are divided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from query.paging.budget import Budget
from query.paging.fitting import fitting_prefix


class OwnText(TextContent):
    """A text that Toolscale wrote, unlike the content of a called tool's result; on the wire it is a text like any."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a page begins: at a character of a block's text, or, with `as_json`, of its JSON."""

    block: int = 0
    character: int = 0
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class _Text:
    """A text that can be divided, what is shown around each of its pieces, and how a piece becomes a block."""

    text: str
    frame: str
    block_of: Callable[[str], ContentBlock]


def visible_texts(block: ContentBlock) -> tuple[str, ...]:
    """Return what a model reads of a block: text, and JSON for all else but binary data, which is no text."""
    if isinstance(block, TextContent):
        return (block.text,)
    if text := _framed(block):
        return (text.frame, text.text)
    return (_json(_without_data(block)),)


def take_part(
    block: ContentBlock, position: Position, budget: Budget, *, page_is_empty: bool
) -> tuple[ContentBlock, Position] | None:
    """Return as much of a block, from this place on, as the budget admits, and the place after it.

    None where nothing of it fits beside what is on the page already. On an empty page something always does: what
    cannot be divided and does not fit becomes text, its own JSON, which can.
    """
    if position.character == 0 and budget.admits(*visible_texts(block)):
        return block, Position(position.block + 1)
    text, as_json = _divisible(block, position, budget), position.as_json
    if text is None:
        if not page_is_empty:
            return None
        text, as_json = _as_json(block), True
    rest = text.text[position.character :]
    length = fitting_prefix(rest, budget.minus(budget.count(text.frame)))
    if length == len(rest):
        return text.block_of(rest), Position(position.block + 1)
    after = Position(position.block, position.character + length, as_json)
    return (text.block_of(rest[:length]), after) if length else None


def _divisible(block: ContentBlock, position: Position, budget: Budget) -> _Text | None:
    """Return how a block goes on from this place; None where it cannot be divided, or its frame leaves hardly room."""
    if isinstance(block, TextContent):
        return _Text(block.text, "", lambda text: block.model_copy(update={"text": text}))
    if position.as_json:
        return _as_json(block)
    text = _framed(block)
    if text is None or budget.minus(budget.max_tokens // 2).admits(text.frame):
        return text
    # a caller that asks for smaller pages half-way has seen the frame
    return _Text(text.text, "", _text_block) if position.character else None


def _framed(block: ContentBlock) -> _Text | None:
    """Return the text of an embedded resource, in its frame."""
    if not (isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents)):
        return None
    resource = block.resource

    def block_of(text: str) -> EmbeddedResource:
        return block.model_copy(update={"resource": resource.model_copy(update={"text": text})})

    return _Text(resource.text, _json(block_of("")), block_of)


def _as_json(block: ContentBlock) -> _Text:
    return _Text(_json(block), "", _text_block)


def _text_block(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _without_data(block: ContentBlock) -> ContentBlock:
    if isinstance(block, ImageContent | AudioContent):
        return block.model_copy(update={"data": ""})
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
        return block.model_copy(update={"resource": block.resource.model_copy(update={"blob": ""})})
    return block


def _json(block: ContentBlock) -> str:
    return block.model_dump_json(by_alias=True, exclude_none=True)
