"""The document of the page shows its screenshots, and they load fast."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.screenshots import SCREENSHOTS

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 150_000


def test_every_picture_has_an_alternative_text() -> None:
    shown = dict(re.findall(r"!\[(.*?)\]\(pictures/(.*?)\)", (DOCS / "page.md").read_text(encoding="utf-8")))

    assert set(shown.values()) == {screenshot.file for screenshot in SCREENSHOTS}
    assert all(len(words.split()) > 3 for words in shown)


def test_every_picture_is_there_and_small() -> None:
    pictures = list((DOCS / "pictures").glob("page-*.png"))

    assert {picture.name for picture in pictures} == {screenshot.file for screenshot in SCREENSHOTS}
    assert all(picture.stat().st_size < MAX_BYTES for picture in pictures)
