from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scripts.site import Site, running_site


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as running:
        yield running
