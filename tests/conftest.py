from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import pytest

from tests.redis_server import redis_server


@pytest.fixture(scope="session", autouse=True)
def no_qdrant_server() -> Generator[None]:
    """Keep tests off the server at QDRANT_URL, which may be somebody's; those that use it keep to names of their own.

    They have read where it is when they were imported.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QDRANT_URL", "TOOLSCALE_QDRANT_URL"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def interruptible_processes() -> Generator[None]:
    """Have what tests start heed SIGINT: a run in the background of a script ignores it, and hands that on."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, _pass_over)  # ignored here as before; a handler is not handed on
    yield
    signal.signal(signal.SIGINT, before)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""


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
