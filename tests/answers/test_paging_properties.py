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

from query.answers.budget import EXACT_CHARACTERS, MIN_TOKENS, Budget, counting, fitting_prefix
from query.answers.pages import Reader, fits, next_page, paginate, shown_texts
from query.kept import Kept
from shared.catalog import ENCODINGS, Encoding
from shared.text.tokens import json_text

READER = Reader("caller", "call_tool")
KEPT = Kept()
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
    page = paginate(result, READER, budget, KEPT)
    pages: list[CallToolResult] = []
    while True:
        assert fits(page, budget)
        pages.append(page)
        if (cursor := cursor_of(page)) is None:
            return pages
        page.content.pop()
        assert page.content, "a page without content would never end"
        page = next_page(cursor, READER, budget, KEPT)


def cursor_of(page: CallToolResult) -> str | None:
    last = page.content[-1] if page.content else None
    if not (isinstance(last, TextContent) and last.text.startswith('{"nextCursor"')):
        return None
    cursor: str = json.loads(last.text)["nextCursor"]
    return cursor


def whole(pages: list[CallToolResult]) -> str:
    return "".join(block.text for page in pages for block in page.content if isinstance(block, TextContent))


def without_text(content: list[ContentBlock]) -> list[ContentBlock]:
    return [block for block in content if not is_text(block)]


def is_text(block: ContentBlock) -> bool:
    if isinstance(block, EmbeddedResource):
        return isinstance(block.resource, TextResourceContents)
    return isinstance(block, TextContent)


@given(st.lists(blocks, max_size=4), budgets, st.booleans())
def test_every_page_is_within_the_budget_and_the_pages_are_the_whole(
    content: list[ContentBlock], budget: Budget, is_error: bool
) -> None:
    result = CallToolResult(content=content, is_error=is_error)

    pages = pages_of(result, budget)

    assert all(page.is_error == is_error for page in pages)
    assert fits(result, budget) == (pages == [result])
    if pages == [result]:
        return
    shown = without_text(list(pages[0].content))
    assert shown in ([], without_text(content))
    assert whole(pages) == "\n".join(shown_texts([block for block in content if not shown or is_text(block)]))
    assert all(without_text(list(page.content)) == [] for page in pages[1:])


def test_a_picture_stays_beside_a_long_text() -> None:
    picture = ImageContent(type="image", data="iVBORw0K" * 500, mime_type="image/png")
    result = CallToolResult(content=[TextContent(text="word " * 3_000), picture])

    first, *others = pages_of(result, Budget(1_000, counting("cl100k_base")))

    assert first.content[0] == picture
    assert whole([first, *others]) == "word " * 3_000


def test_pictures_whose_descriptions_would_fill_a_page_are_named_in_the_text() -> None:
    picture = ImageContent(type="image", data="iVBORw0K" * 500, mime_type="image/png")

    pages = pages_of(CallToolResult(content=[picture] * 100), Budget(1_000, counting("cl100k_base")))

    assert len(pages) > 1
    assert whole(pages).count('"mimeType":"image/png"') == 100


def test_a_text_of_several_blocks_has_the_uris_of_its_resources() -> None:
    content = [text_block("two files:"), embedded_text("file:///a", "milk"), embedded_text("file:///b", "word " * 999)]

    pages = pages_of(CallToolResult(content=content), Budget(MIN_TOKENS, counting("cl100k_base")))

    assert whole(pages) == f"two files:\nfile:///a\nmilk\nfile:///b\n{'word ' * 999}"


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
    assert whole(pages) == said + ("\n" + json_text(value) if text == "other" else "")


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

    first = paginate(result, READER, large, KEPT)
    cursor = cursor_of(first)
    assert cursor is not None
    second = next_page(cursor, READER, small, KEPT)

    assert fits(second, small)
    parts = [page.content[0] for page in (first, second)]
    read = [part.text for part in parts if isinstance(part, TextContent)]
    assert resource.text.startswith("".join(read))
    assert len(read[1]) > 100


def test_a_page_of_blanks_counts_each_of_them_three_times_at_most() -> None:
    counted: list[int] = []

    def counter(text: str) -> int:
        counted.append(len(text))
        return counting("cl100k_base")(text)

    budget = Budget(1_000, counter)
    result = CallToolResult(content=[TextContent(text=" " * 1_000_000)])

    page = paginate(result, READER, budget, KEPT)

    shown = sum(len(block.text) for block in page.content[:1] if isinstance(block, TextContent))
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
