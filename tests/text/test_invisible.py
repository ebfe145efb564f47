"""Nothing invisible stays in a text of a server, and nothing visible is lost."""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult, TextContent

from shared.text.invisible import MARK, mark_text, marked
from tests.support.invisible import INVISIBLE, texts_in

ASTRAL_TAGS = range(0xE0000, 0xE1000)
KEPT = "\t\n\r"


def test_every_format_and_control_character_is_marked_but_tabs_and_line_ends() -> None:
    prefixed = (chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)) in ("Cc", "Cf"))
    # Arabic and other numbers begin with visible signs of this category
    visible = {"\u0600", "\u0601", "\u0602", "\u0603", "\u0604", "\u0605", "\u06dd", "\u070f", "\u0890", "\u0891"}
    visible |= {"\u08e2", "\U000110bd", "\U000110cd", *map(chr, range(0x13430, 0x13440))}

    kept = {sign for sign in prefixed if mark_text(f"a{sign}b") == f"a{sign}b"}

    assert kept - visible == set(KEPT)
    assert all(mark_text(chr(code)) == MARK for code in ASTRAL_TAGS)


@pytest.mark.parametrize(
    "text",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u0d15\u0d4d\u200d \u0d37",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467",
        "\u2764\ufe0f\u200d\U0001f525",
        "#\ufe0f\u20e3",
        "\u2764\ufe0e",
        "\U0001f44d\U0001f3fd",
        "tabs\tand\r\nlines",
    ],
)
def test_joiners_and_styles_that_a_script_or_an_emoji_needs_stay(text: str) -> None:
    assert mark_text(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u200db\ufe0f", "a\ufffdb\ufffd"),
        ("\u2764\ufe0f\ufe0f", "\u2764\ufe0f\ufffd"),
        ("\u0627\u200c\u200d\u200c", "\u0627\u200c\ufffd"),
        ("\x1b[31mred\x1b[0m", "\ufffd[31mred\ufffd[0m"),
        ("hi" + "".join(map(chr, range(0xE0041, 0xE005B))) + "!", "hi\ufffd!"),
    ],
)
def test_a_run_of_invisible_characters_becomes_one_mark(text: str, shown: str) -> None:
    assert mark_text(text) == shown


@given(st.text(st.sampled_from(INVISIBLE), max_size=12) | st.text())
def test_a_marked_text_has_nothing_to_mark_and_is_no_longer(text: str) -> None:
    shown = mark_text(text)

    assert mark_text(shown) == shown
    assert len(shown) <= len(text)


@given(st.recursive(st.text(INVISIBLE), lambda inner: st.lists(inner) | st.dictionaries(st.text(INVISIBLE), inner)))
def test_all_texts_and_keys_of_a_value_are_marked(value: object) -> None:
    assert all(mark_text(text) == text for text in texts_in(marked(value)))


def test_a_value_without_invisible_characters_is_returned_itself() -> None:
    result = CallToolResult(content=[TextContent(text="wörds")], structured_content={"a": ["b", 1, None]})

    assert marked(result) is result
