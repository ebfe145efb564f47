"""The pages of an answer: a result above its budget as text cut by tokens, and the further tools of a search.

The result of a call cannot be read twice, so its text is stored and each page is cut from it. A page of a search is a
new search without the tools of earlier pages: no definition comes twice and none is lost, even if the ranking changes
between two pages. A position in the ranking guarantees neither. Any replica can return any page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import cast

import structlog
from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

from query.answers.budget import Budget, fitting_prefix
from query.answers.links import added_text
from query.kept import LONGEST_NAME, Kept, new_name
from shared.catalog import IndexedTool
from shared.errors import CursorsUnavailable
from shared.text.tokens import json_text

MORE_PAGES = "This is not all: for the rest call {tool} again, with this cursor."
REST_LOST = "This is not all, and the rest could not be kept: ask for less at once."

# Of a hash of the definition. In about 1 of 40,000 rankings of 450 tools, two definitions share it.
_MARK_BYTES = 4

_log = structlog.get_logger()


class OwnText(TextContent):
    """A text that Toolscale wrote, unlike the content of a called tool's result; on the wire it is a text like any."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The caller that reads a result, and the built-in tool that returns its next page."""

    caller: str
    tool: str

    @property
    def binding(self) -> tuple[str, str, str]:
        """Return what the cursors of this reader are bound to."""
        return self.caller, self.tool, "rest"


def fits(result: CallToolResult, budget: Budget) -> bool:
    """Return whether the content and the structured content of a result are each within the budget.

    Both hold the same answer, and a client shows one of them to a model, so their sum does not count.
    """
    return all(budget.admits(*form) for form in _forms(result))


def surely_fits(result: CallToolResult, budget: Budget) -> bool:
    """Return whether a result is so short that it fits without counting."""
    return all(budget.surely_admits(*form) for form in _forms(result))


def _forms(result: CallToolResult) -> Iterator[list[str]]:
    yield shown_texts(result.content)
    if result.structured_content is not None:
        yield [json_text(result.structured_content)]


def shown_texts(content: Sequence[ContentBlock]) -> list[str]:
    """Return what a model reads of each block: text, and JSON for all else but binary data, which is no text.

    The text of an embedded resource comes behind a line with its URI, unless it is the whole content.
    """
    texts: list[str] = []
    for block in content:
        match block:
            case TextContent(text=text):
                texts.append(text)
            case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
                texts.append(text if len(content) == 1 else f"{uri}\n{text}")
            case ImageContent() | AudioContent():
                texts.append(_json(block.model_copy(update={"data": ""})))
            case EmbeddedResource(resource=BlobResourceContents() as resource):
                without_data = resource.model_copy(update={"blob": ""})
                texts.append(_json(block.model_copy(update={"resource": without_data})))
            case _:
                texts.append(_json(block))
    return texts


def _json(block: ContentBlock) -> str:
    return block.model_dump_json(by_alias=True, exclude_none=True)


def paginate(result: CallToolResult, reader: Reader, budget: Budget, kept: Kept) -> CallToolResult:
    """Return the result unchanged if it is within the budget, else its first page.

    Pictures, links and other blocks without text stay on that page, unless their descriptions would fill most of it:
    then these are a part of the text. The page warns if the rest cannot be stored.
    """
    if fits(result, budget):
        return result
    _log.warning("response_truncated", tool=reader.tool, form="page", max_tokens=budget.max_tokens)
    whole = [block for block in result.content if not _is_text(block)]
    described = budget.cost(*shown_texts(whole))
    if described > budget.max_tokens // 2:
        whole, described = [], 0
    divided = [block for block in result.content if not whole or _is_text(block)]
    text = "\n".join([*shown_texts(divided), *_missing_from_text(result)])
    is_own = bool(divided) and all(isinstance(block, OwnText) for block in divided)
    start, cursor, room = _Start(new_name(), 0, result.is_error, is_own), new_name(), budget.minus(described)
    page, end = _page(text, start, room, reader, cursor)
    if end < len(text):
        try:
            kept.put(text.encode("utf-8", "surrogatepass"), *reader.binding, "text", name=start.text)
            _put_start(replace(start, character=end), cursor, reader, kept)
        except CursorsUnavailable as error:
            _log.warning("page_not_stored", tool=reader.tool, reason=str(error))
            page, _ = _page(text, start, room, reader, None)
    return page.model_copy(update={"content": [*whole, *page.content], "meta": result.meta})


def next_page(cursor: str, reader: Reader, budget: Budget, kept: Kept) -> CallToolResult:
    """Return the page of a cursor that `paginate` or this function made.

    Raises:
        CursorInvalid: the cursor is not of this reader, or its rest has expired.
        CursorsUnavailable: the rest cannot be read or its cursor not be stored now.
    """
    start = _Start(*json.loads(kept.get(cursor, *reader.binding)))
    text = kept.get(start.text, *reader.binding, "text").decode("utf-8", "surrogatepass")
    further = new_name()
    page, end = _page(text, start, budget, reader, further)
    if end < len(text):
        _put_start(replace(start, character=end), further, reader, kept)
    return page


@dataclass(frozen=True, slots=True)
class _Start:
    """The name of a stored text, and the character at which a page begins; each cursor names one."""

    text: str
    character: int
    is_error: bool
    is_own: bool


def _put_start(start: _Start, cursor: str, reader: Reader, kept: Kept) -> None:
    kept.put(json.dumps(astuple(start)).encode(), *reader.binding, name=cursor)


def _page(text: str, start: _Start, budget: Budget, reader: Reader, cursor: str | None) -> tuple[CallToolResult, int]:
    """Return a page of the text with this cursor, and the character behind it; without a cursor, the rest is lost."""
    rest = text[start.character :]
    block = OwnText if start.is_own else TextContent
    if budget.admits(rest):
        return CallToolResult(content=[block(text=rest)], is_error=start.is_error), len(text)
    # not with the random cursor, so that equal texts are cut at equal places
    length = fitting_prefix(rest, budget.minus(budget.count(_notice(LONGEST_NAME, reader))))
    content: list[ContentBlock] = [block(text=rest[:length]), OwnText(text=_notice(cursor, reader))]
    return CallToolResult(content=content, is_error=start.is_error), start.character + length


def _notice(cursor: str | None, reader: Reader) -> str:
    further = {"nextCursor": cursor, "warnings": [MORE_PAGES.format(tool=reader.tool)]}
    return json_text(further if cursor else {"warnings": [REST_LOST]})


def own_texts(result: CallToolResult) -> list[str]:
    """Return the texts of a result that Toolscale wrote, its parts of links included."""
    texts = (block.text if isinstance(block, OwnText) else added_text(block) for block in result.content)
    return [text for text in texts if text]


def _is_text(block: ContentBlock) -> bool:
    if isinstance(block, EmbeddedResource):
        return isinstance(block.resource, TextResourceContents)
    return isinstance(block, TextContent)


def _missing_from_text(result: CallToolResult) -> list[str]:
    """Return the structured content as JSON, unless the result's text repeats it.

    As JSON, or the value of its only key, or a block for each item of that, as the SDKs do.
    """
    if result.structured_content is None:
        return []
    texts = [block.text for block in result.content if isinstance(block, TextContent)]
    values = [_parsed(text) for text in texts]
    shown: list[object] = [values, texts, *values[:1], *texts[:1]]
    if result.structured_content in shown:
        return []
    structured: object = result.structured_content
    members = list(cast("dict[str, object]", structured).values()) if isinstance(structured, dict) else []
    return [] if len(members) == 1 and members[0] in shown else [json_text(result.structured_content)]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True, slots=True)
class SearchPages:
    """The pages of one caller's question; `shown` has the marks of the definitions on earlier pages."""

    kept: Kept
    caller: str
    tool: str
    question: str
    shown: frozenset[bytes] = frozenset()

    def after(self, cursor: str | None) -> SearchPages:
        """Return the pages behind this cursor; None: from the beginning.

        Raises:
            CursorInvalid: it belongs to another caller or question, was changed, or has expired.
            CursorsUnavailable: the store does not answer.
        """
        if cursor is None:
            return self
        marks = self.kept.get(cursor, *self._binding)
        at = range(0, len(marks), _MARK_BYTES)
        return replace(self, shown=frozenset(marks[start : start + _MARK_BYTES] for start in at))

    def is_new(self, tool: IndexedTool) -> bool:
        """Return whether no earlier page has shown this definition, of any server."""
        return not self.shown or _mark(tool) not in self.shown

    def put(self, cursor: str, tools: Sequence[IndexedTool]) -> None:
        """Make this cursor lead to the page after these tools.

        Raises:
            CursorsUnavailable: the store does not answer.
        """
        shown = self.shown.union(_mark(tool) for tool in tools)
        self.kept.put(b"".join(sorted(shown)), *self._binding, name=cursor)

    @property
    def _binding(self) -> tuple[str, str, str]:
        return self.caller, self.tool, self.question


def _mark(tool: IndexedTool) -> bytes:
    return hashlib.blake2b(tool.definition_id.encode(), digest_size=_MARK_BYTES).digest()
