from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.redis_server import redis_server


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A real Redis for the whole run; a test that needs it empty says so."""
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def own_redis_url(tmp_path: Path) -> Generator[str]:
    """A real Redis for one test alone, which it may stop or kill."""
    with redis_server(tmp_path) as url:
        yield url
