from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.browser import Browser, browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    """A browser for all tests of the page."""
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started
