from __future__ import annotations

import logging
from collections.abc import Generator

import pytest

from shared.errors import ConfigInvalid
from shared.index.client import ServerClient
from shared.service.logging import LEVELS, LIBRARIES, configure_logging
from shared.upstream.target import HttpTarget
from tests.support.hostile.scripted_http import scripted_http
from tests.support.hostile.scripts import GOOD, plays
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking


@pytest.fixture(autouse=True)
def _levels_are_put_back() -> Generator[None]:
    root = logging.getLogger()
    handlers, before = root.handlers, {name: logging.getLogger(name).level for name in ("", *LIBRARIES)}
    yield
    root.handlers = handlers
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_makes_a_library_write_a_secret_of_a_url(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with scripted_http(plays(GOOD)) as server:
        configure_logging(level)
        fetch_tools_blocking("s", HttpTarget(f"{server.url}?api_key=s3cret-s3cret"), Limits(timeout_s=60))

    assert "s3cret" not in capsys.readouterr().err


def test_a_request_to_qdrant_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("INFO")

    with scripted_http(lambda exchange: exchange.send_json({"result": {"exists": True}})) as server:
        assert ServerClient(server.url.removesuffix("/mcp"), None).collection_exists("tools")

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_says_no_more_than_its_share_and_no_more_than_asked_for(level: str, library: str) -> None:
    configure_logging(level)

    found = logging.getLogger(library).getEffectiveLevel()

    assert found == max(LIBRARIES[library], logging.getLevelNamesMapping()[level])


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="log_level"):
        configure_logging("LOUD")
