"""A result within its budget: whole where it fits, else its first page, and a cursor to the kept rest.

The result of a call cannot be had again without calling again, so it is kept whole, and each page is cut from it.
Pages are text: a part of structured content would be another value, so where the text does not hold it already, it
follows as JSON, and no page carries any.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from mcp.types import CallToolResult, ContentBlock, TextContent

from query.cursors.store import KEY_BYTES
from query.paging.blocks import Place, shown, take
from query.paging.budget import Budget, json_text
from query.paging.policy import Answers
from shared.errors import CursorsUnavailable

CUT = "This is not all: for the rest call {tool} again, with this cursor."
LOST = "This is not all, and the rest could not be kept: ask for less at once."
# A cursor to a kept rest has 56 characters, of which none is more than a token; a few where it meets its quotes.
CURSOR_TOKENS = 60

_PLACE = struct.Struct(">II?")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads a result, and the tool of ours by which it is read on."""

    caller: str
    tool: str


def bound(result: CallToolResult, reader: Reader, budget: Budget, answers: Answers) -> CallToolResult:
    """Return the result unchanged where it is within the budget, else its first page.

    Where the rest cannot be kept, the page says so.
    """
    if fits(result, budget):
        return result
    whole = CallToolResult(content=[*result.content, *_missing_from_text(result)], is_error=result.is_error)
    _log.warning("answer_bounded", tool=reader.tool, form="page", max_tokens=budget.max_tokens)
    answers.cut(reader.tool, "page")
    try:
        key = answers.cursors.store.put(whole.model_dump_json(by_alias=True, exclude_none=True).encode())
    except CursorsUnavailable as error:
        _log.warning("rest_not_kept", tool=reader.tool, reason=str(error))
        return _page(whole, Place(), budget, reader, None).model_copy(update={"meta": result.meta})
    return _page(whole, Place(), budget, reader, _Rest(key, answers)).model_copy(update={"meta": result.meta})


def read_on(cursor: str, reader: Reader, budget: Budget, answers: Answers) -> CallToolResult:
    """Return the page that a cursor of `bound` leads to.

    Raises:
        CursorInvalid: it is no such cursor of this reader, or its rest is no longer kept.
        CursorsUnavailable: the rest cannot be read now.
    """
    state = answers.cursors.unseal(cursor, *_binding(reader))
    key, place = state[:KEY_BYTES], Place(*_PLACE.unpack(state[KEY_BYTES:]))
    whole = CallToolResult.model_validate_json(answers.cursors.store.get(key))
    return _page(whole, place, budget, reader, _Rest(key, answers))


def fits(result: CallToolResult, budget: Budget) -> bool:
    """Return whether a result is within the budget, whichever of its two forms a client shows to a model.

    Content and structured content are the same answer twice, so each is held to the budget, not their sum.
    """
    return all(budget.admits(*form) for form in _forms(result))


def fits_plainly(result: CallToolResult, budget: Budget) -> bool:
    """Return whether a result is so short that this is plain without counting."""
    return all(budget.is_plainly_enough_for(*form) for form in _forms(result))


def _forms(result: CallToolResult) -> Iterator[list[str]]:
    yield [text for block in result.content for text in shown(block)]
    if result.structured_content is not None:
        yield [json_text(result.structured_content)]


@dataclass(frozen=True, slots=True)
class _Rest:
    """A kept result, to which cursors can be made."""

    key: bytes
    answers: Answers

    def cursor(self, place: Place, reader: Reader) -> str:
        state = self.key + _PLACE.pack(place.block, place.character, place.as_json)
        return self.answers.cursors.seal(state, *_binding(reader))


def _binding(reader: Reader) -> tuple[str, str, str]:
    return reader.caller, reader.tool, "rest"


def _page(whole: CallToolResult, start: Place, budget: Budget, reader: Reader, rest: _Rest | None) -> CallToolResult:
    notice = _notice(reader, "")
    room = budget.less(budget.count(notice) + CURSOR_TOKENS)
    blocks, after = _blocks(whole.content, start, room)
    if after.block < len(whole.content):
        blocks.append(_text(_notice(reader, rest.cursor(after, reader) if rest else None)))
    return CallToolResult(content=blocks, is_error=whole.is_error)


def _blocks(content: Sequence[ContentBlock], start: Place, room: Budget) -> tuple[list[ContentBlock], Place]:
    """Return the blocks of a page of this room, and the place after them."""
    blocks: list[ContentBlock] = []
    place = start
    while place.block < len(content):
        taken = take(content[place.block], place, room, page_is_empty=not blocks)
        if taken is None:
            break
        block, place = taken
        blocks.append(block)
        room = room.less(room.cost(*shown(block)))
    return blocks, place


def _notice(reader: Reader, cursor: str | None) -> str:
    if cursor is None:
        return json_text({"warnings": [LOST]})
    return json_text({"nextCursor": cursor, "warnings": [CUT.format(tool=reader.tool)]})


def _missing_from_text(result: CallToolResult) -> list[TextContent]:
    """Return the structured content as a block of text, where the result's text does not say the same."""
    structured = result.structured_content
    if structured is None or _is_said(
        structured, [block for block in result.content if isinstance(block, TextContent)]
    ):
        return []
    return [_text(json_text(structured))]


def _is_said(structured: Any, blocks: Sequence[TextContent]) -> bool:
    """Return whether the text blocks are this value: as JSON, or the value of a lone `result`, or a block an item."""
    texts = [block.text for block in blocks]
    values = [_parsed(text) for text in texts]
    if values == [structured]:
        return True
    if not (isinstance(structured, dict) and structured.keys() == {"result"}):
        return False
    return structured["result"] in (values, texts, *values[:1], *texts[:1])


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)
