from __future__ import annotations

import logging
from collections.abc import Generator
from itertools import pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigInvalid, IndexUnavailable, IntentsUnavailable
from shared.index.client import ServerClient
from shared.service.logging import LEVELS, LIBRARIES, PER_S, FailureLog, configure_logging
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


KINDS = (IndexUnavailable, IntentsUnavailable, ValueError, RecursionError)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.floats(0, 2 * PER_S))))
def test_each_kind_has_a_line_a_minute_and_no_failure_is_uncounted(
    failures: list[tuple[type[Exception], float]],
) -> None:
    now_s = 0.0
    failing = FailureLog("task_failed", lambda: now_s)
    logged: list[tuple[str, float]] = []
    with structlog.testing.capture_logs() as lines:
        for kind, after_s in failures:
            now_s += after_s
            failing.log(kind("away"))
            logged += [(str(line["kind"]), now_s) for line in lines[len(logged) :]]
        for kind in KINDS:
            now_s += 2 * PER_S
            failing.log(kind("away"))

    for kind in KINDS:
        own = [at_s for name, at_s in logged if name == kind.__name__]
        assert all(later - earlier >= PER_S for earlier, later in pairwise(own))
        of_kind = [line for line in lines if line["kind"] == kind.__name__]
        assert sum(1 + line["left_out"] for line in of_kind) == 1 + sum(kind is failed for failed, _ in failures)
