"""A result within its budget: whole if it fits, else its first page and a cursor to the stored rest.

The result of a call cannot be read twice, so it is stored whole and each page is cut from it.
Pages contain only text. Structured content that the text does not already repeat is appended as JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import structlog
from mcp.types import CallToolResult, ContentBlock, TextContent

from query.cursors.store import KEY_BYTES
from query.paging.blocks import OwnText, Position, take_part, visible_texts
from query.paging.budget import Budget
from query.paging.links import added_text
from query.paging.policy import ResponsePolicy
from shared.errors import CursorsUnavailable
from shared.text.tokens import json_text

MORE_PAGES = "This is not all: for the rest call {tool} again, with this cursor."
REST_LOST = "This is not all, and the rest could not be kept: ask for less at once."
# A cursor to a stored rest has 56 characters of at most a token each, and its quotes may add a few.
CURSOR_TOKENS = 60

_POSITION = struct.Struct(">II?")
# Marks a stored result of Toolscale's own texts; no page shows it.
_OWN = "own"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reader:
    """The caller that reads a result, and the built-in tool that returns its next page."""

    caller: str
    tool: str


def paginate(result: CallToolResult, reader: Reader, budget: Budget, policy: ResponsePolicy) -> CallToolResult:
    """Return the result unchanged if it is within the budget, else its first page.

    The page warns if the rest cannot be stored.
    """
    if fits(result, budget):
        return result
    whole = _whole(result)
    _log.warning("response_truncated", tool=reader.tool, form="page", max_tokens=budget.max_tokens)
    try:
        key = policy.cursors.store.put(whole.model_dump_json(by_alias=True, exclude_none=True).encode())
    except CursorsUnavailable as error:
        _log.warning("page_not_stored", tool=reader.tool, reason=str(error))
        return _page(whole, Position(), budget, reader, None).model_copy(update={"meta": result.meta})
    return _page(whole, Position(), budget, reader, _Rest(key, policy)).model_copy(update={"meta": result.meta})


def next_page(cursor: str, reader: Reader, budget: Budget, policy: ResponsePolicy) -> CallToolResult:
    """Return the page of a cursor that `paginate` or this function made.

    Raises:
        CursorInvalid: the cursor is not of this reader, or its rest has expired.
        CursorsUnavailable: the rest cannot be read now.
    """
    state = policy.cursors.unseal(cursor, *_binding(reader))
    key, position = state[:KEY_BYTES], Position(*_POSITION.unpack(state[KEY_BYTES:]))
    whole = _restored(policy.cursors.store.get(key))
    return _page(whole, position, budget, reader, _Rest(key, policy))


def own_texts(result: CallToolResult) -> list[str]:
    """Return the texts of a result that Toolscale wrote, its parts of links included."""
    texts = (block.text if isinstance(block, OwnText) else added_text(block) for block in result.content)
    return [text for text in texts if text]


def fits(result: CallToolResult, budget: Budget) -> bool:
    """Return whether the content and the structured content of a result are each within the budget.

    Both hold the same answer, and a client shows one of them to a model, so their sum does not count.
    """
    return all(budget.admits(*form) for form in _forms(result))


def surely_fits(result: CallToolResult, budget: Budget) -> bool:
    """Return whether a result is so short that it fits without counting."""
    return all(budget.surely_admits(*form) for form in _forms(result))


def _forms(result: CallToolResult) -> Iterator[list[str]]:
    yield [text for block in result.content for text in visible_texts(block)]
    if result.structured_content is not None:
        yield [json_text(result.structured_content)]


@dataclass(frozen=True, slots=True)
class _Rest:
    """A stored result that cursors refer to."""

    key: bytes
    policy: ResponsePolicy

    def cursor(self, position: Position, reader: Reader) -> str:
        state = self.key + _POSITION.pack(position.block, position.character, position.as_json)
        return self.policy.cursors.seal(state, *_binding(reader))


def _whole(result: CallToolResult) -> CallToolResult:
    """Return all of a result as content; `meta` marks the texts of Toolscale, whose type the stored JSON lacks."""
    content = [*result.content, *_missing_from_text(result)]
    meta = {_OWN: True} if all(isinstance(block, OwnText) for block in content) else None
    return CallToolResult(content=content, is_error=result.is_error, _meta=meta)


def _restored(stored: bytes) -> CallToolResult:
    """Return a stored result; its texts have their type again."""
    whole = CallToolResult.model_validate_json(stored)
    if _OWN not in (whole.meta or {}):
        return whole
    content = [OwnText(text=block.text) for block in whole.content if isinstance(block, TextContent)]
    return CallToolResult(content=list[ContentBlock](content), is_error=whole.is_error)


def _binding(reader: Reader) -> tuple[str, str, str]:
    return reader.caller, reader.tool, "rest"


def _page(whole: CallToolResult, start: Position, budget: Budget, reader: Reader, rest: _Rest | None) -> CallToolResult:
    notice = _notice(reader, "")
    room = budget.minus(budget.count(notice) + CURSOR_TOKENS)
    blocks, after = _blocks(whole.content, start, room)
    if after.block < len(whole.content):
        blocks.append(OwnText(text=_notice(reader, rest.cursor(after, reader) if rest else None)))
    return CallToolResult(content=blocks, is_error=whole.is_error)


def _blocks(content: Sequence[ContentBlock], start: Position, room: Budget) -> tuple[list[ContentBlock], Position]:
    """Return the blocks that fit into `room`, and the position after them."""
    blocks: list[ContentBlock] = []
    position = start
    while position.block < len(content):
        part = take_part(content[position.block], position, room, page_is_empty=not blocks)
        if part is None:
            break
        block, position = part
        blocks.append(block)
        room = room.minus(room.cost(*visible_texts(block)))
    return blocks, position


def _notice(reader: Reader, cursor: str | None) -> str:
    if cursor is None:
        return json_text({"warnings": [REST_LOST]})
    return json_text({"nextCursor": cursor, "warnings": [MORE_PAGES.format(tool=reader.tool)]})


def _missing_from_text(result: CallToolResult) -> list[TextContent]:
    """Return the structured content as a text block, unless the result's text repeats it."""
    structured = result.structured_content
    if structured is None or _is_in_text(
        structured, [block for block in result.content if isinstance(block, TextContent)]
    ):
        return []
    return [TextContent(text=json_text(structured))]


def _is_in_text(structured: Any, blocks: Sequence[TextContent]) -> bool:
    """Return whether the text blocks are this value: as JSON, or the value of its only key, or a block an item."""
    texts = [block.text for block in blocks]
    values = [_parsed(text) for text in texts]
    if values == [structured]:
        return True
    if not isinstance(structured, dict) or len(members := list(cast("dict[str, object]", structured).values())) != 1:
        return False
    return members[0] in (values, texts, *values[:1], *texts[:1])


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
