from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from query.usage.store_sqlite import SqliteUsage
from query.usage.usage import Usage
from tests.support.browser import Browser, browser


@pytest.fixture
def usage(tmp_path: Path) -> Generator[Usage]:
    """The history of a service, empty."""
    with closing(SqliteUsage(tmp_path / "savings.sqlite3", 30)) as opened:
        yield opened


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Generator[Browser]:
    """A browser for all tests of the page."""
    with browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started
