from __future__ import annotations

import shutil
from collections.abc import Generator

import pytest

from shared.errors import ToolscaleError
from tests.conformance.suite import Suite, install


@pytest.fixture(scope="session")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Generator[Suite]:
    """The installed suite; removed at the end, since it takes some hundred megabytes."""
    directory = tmp_path_factory.mktemp("node")
    try:
        yield install(directory)
    except ToolscaleError as error:
        pytest.skip(f"the conformance suite is not installed: {error}")
    finally:
        shutil.rmtree(directory)
