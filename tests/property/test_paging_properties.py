"""Whatever a tool answers and however small the budget: every page is within it, and the pages are the whole."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from query.paging.blocks import visible_texts
from query.paging.budget import EXACT_CHARACTERS, MIN_TOKENS, Budget, counting
from query.paging.fitting import fitting_prefix
from query.paging.policy import ResponsePolicy
from query.paging.results import Reader, fits, next_page, paginate
from shared.catalog import ENCODINGS, Encoding
from shared.text.tokens import json_text

READER = Reader("caller", "call_tool")
ANSWERS = ResponsePolicy()
for encoding in ENCODINGS:
    counting(encoding)  # loaded before the first example is timed

characters = st.characters(exclude_categories=["Cs"])
pieces = st.text(characters, max_size=30) | st.sampled_from(["lorem ipsum ", "\n", " ", "a", "\u0e01", '{"k":1}'])


def repeated(piece: str, times: int) -> str:
    return piece * times


def file_uri(path: str) -> str:
    return f"file:///{path}"


def text_block(text: str) -> ContentBlock:
    return TextContent(type="text", text=text)


def link(uri: str, text: str) -> ContentBlock:
    return ResourceLink(type="resource_link", name="r", uri=uri, description=text)


def embedded_text(uri: str, text: str) -> ContentBlock:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, text=text))


def embedded_data(uri: str) -> ContentBlock:
    return EmbeddedResource(type="resource", resource=BlobResourceContents(uri=uri, blob="AAAA" * 999))


def budget_of(tokens: int, encoding: Encoding) -> Budget:
    return Budget(tokens, counting(encoding))


texts = st.builds(repeated, pieces, st.sampled_from([1, 3, 50, 700]))
uris = st.builds(file_uri, st.text("ab/%20", max_size=300))
blocks = st.one_of(
    st.builds(text_block, texts),
    st.just(ImageContent(type="image", data="iVBORw0K" * 500, mime_type="image/png")),
    st.builds(link, uris, texts),
    st.builds(embedded_text, uris, texts),
    st.builds(embedded_data, uris),
)
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | texts
json_values: st.SearchStrategy[Any] = scalars | st.lists(scalars, max_size=4) | st.dictionaries(pieces, scalars)
budgets = st.builds(budget_of, st.integers(MIN_TOKENS, 2_000), st.sampled_from(ENCODINGS))


def pages_of(result: CallToolResult, budget: Budget) -> list[CallToolResult]:
    """Return every page, as a caller reads them; the notice at the end of each is taken off."""
    page = paginate(result, READER, budget, ANSWERS)
    pages: list[CallToolResult] = []
    while True:
        assert fits(page, budget)
        pages.append(page)
        if (cursor := cursor_of(page)) is None:
            return pages
        page.content.pop()
        assert page.content, "a page without content would never end"
        page = next_page(cursor, READER, budget, ANSWERS)


def cursor_of(page: CallToolResult) -> str | None:
    last = page.content[-1] if page.content else None
    if not (isinstance(last, TextContent) and last.text.startswith('{"nextCursor"')):
        return None
    cursor: str = json.loads(last.text)["nextCursor"]
    return cursor


def whole(pages: list[CallToolResult]) -> str:
    return "".join(text_of(block) for page in pages for block in page.content)


def text_of(block: ContentBlock) -> str:
    """Return what was taken over of a block, whatever it was divided into."""
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return block.resource.text
    return block.text if isinstance(block, TextContent) else block.model_dump_json(by_alias=True, exclude_none=True)


@given(st.lists(blocks, max_size=4), budgets, st.booleans())
def test_every_page_is_within_the_budget_and_the_pages_are_the_whole(
    content: list[ContentBlock], budget: Budget, is_error: bool
) -> None:
    result = CallToolResult(content=content, is_error=is_error)

    pages = pages_of(result, budget)

    assert is_in_order(content, whole(pages))
    assert all(page.is_error == is_error for page in pages)
    assert fits(result, budget) == (pages == [result])


def is_in_order(content: list[ContentBlock], text: str) -> bool:
    """Return whether a text is these blocks one after the other, each by its text or by its JSON, and nothing else."""
    ends = {0}
    for block in content:
        forms = (text_of(block), json_of(block))
        ends = {end + len(form) for end in ends for form in forms if text.startswith(form, end)}
    return len(text) in ends


def json_of(block: ContentBlock) -> str:
    return block.model_dump_json(by_alias=True, exclude_none=True)


@given(st.dictionaries(pieces, json_values, max_size=4), st.sampled_from(["same", "other", "wrapped"]), pieces, budgets)
def test_structured_content_is_there_whole_or_as_text_and_never_in_part(
    structured: dict[str, Any], text: str, key: str, budget: Budget
) -> None:
    said = {"same": json_text(structured), "other": "done", "wrapped": json_text([structured])}[text]
    value = {key: [structured]} if text == "wrapped" else structured
    result = CallToolResult(content=[TextContent(type="text", text=said)], structured_content=value)

    pages = pages_of(result, budget)

    if pages == [result]:
        return
    assert all(page.structured_content is None for page in pages)
    assert whole(pages) == said + (json_text(value) if text == "other" else "")


@given(texts, st.integers(1, 300), st.sampled_from(ENCODINGS))
def test_a_text_is_cut_where_its_tokens_end(text: str, tokens: int, encoding: Encoding) -> None:
    budget = Budget(tokens, counting(encoding))

    prefix = text[: fitting_prefix(text, budget)]

    assert budget.count(prefix) <= tokens
    assert prefix == text or not budget.admits(text[: len(prefix) + 1])


def test_a_page_may_be_smaller_than_the_one_before() -> None:
    resource = TextResourceContents(uri="file:///" + "a b/" * 60, text="word " * 3_000)
    result = CallToolResult(content=[EmbeddedResource(type="resource", resource=resource)])
    large, small = (Budget(tokens, counting("cl100k_base")) for tokens in (2_000, MIN_TOKENS))

    first = paginate(result, READER, large, ANSWERS)
    cursor = cursor_of(first)
    assert cursor is not None
    second = next_page(cursor, READER, small, ANSWERS)

    assert fits(second, small)
    read = "".join(text_of(page.content[0]) for page in (first, second))
    assert resource.text.startswith(read)
    assert sum(len(text) for text in visible_texts(second.content[0])) > 100


def test_a_page_of_blanks_counts_each_of_them_three_times_at_most() -> None:
    counted: list[int] = []

    def counter(text: str) -> int:
        counted.append(len(text))
        return counting("cl100k_base")(text)

    budget = Budget(1_000, counter)
    result = CallToolResult(content=[TextContent(text=" " * 1_000_000)])

    page = paginate(result, READER, budget, ANSWERS)

    shown = len(text_of(page.content[0]))
    assert shown > EXACT_CHARACTERS
    assert max(counted) <= EXACT_CHARACTERS
    assert sum(counted) <= 3 * shown


@given(st.text("a \n\u0e01", max_size=300), st.integers(1, 40_000))
def test_a_long_text_is_cut_where_the_count_of_its_pieces_ends(piece: str, tokens: int) -> None:
    text = (piece or " ") * (2 * EXACT_CHARACTERS // (len(piece) or 1))
    budget = Budget(tokens, counting("heuristic"))

    prefix = text[: fitting_prefix(text, budget)]

    assert budget.count(prefix) <= tokens
    assert prefix == text or not budget.admits(text[: len(prefix) + 1])
