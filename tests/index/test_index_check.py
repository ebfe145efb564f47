"""Processes that start while no Qdrant server answers: they warn at once, and the worker takes tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from shared.settings import load_settings
from tests.support.hostile.scripted_http import scripted_http
from tests.support.ports import free_port
from tests.support.processes import Composition
from workers.monitoring.checks import warn_if_index_unreachable

pytestmark = pytest.mark.process

COMMANDS = {
    "worker": ("-m", "celery", "-A", "workers.app", "worker", "--without-mingle", "--hostname", "one@localhost"),
    "notifications": ("-m", "workers.notifications"),
    "events-api": ("-m", "workers.events_api"),
}


@pytest.mark.redis
@pytest.mark.parametrize("name", COMMANDS)
def test_a_process_warns_at_its_start_that_no_qdrant_server_answers(
    name: str, own_redis_url: str, tmp_path: Path
) -> None:
    address = {"QDRANT_URL": f"http://127.0.0.1:{free_port()}", "TOOLSCALE_EVENTS_PORT": "0"}
    composition = Composition(own_redis_url, tmp_path, address | {"TOOLSCALE_EVENTS_TOKEN": "t" * 40})

    with composition.run(name, *COMMANDS[name]) as running:
        running.wait_for('"event": "index_unreachable"')

        assert '"reason": "ConnectError' in running.output()


@pytest.mark.parametrize("status", [200, 401])
def test_a_server_that_answers_is_not_warned_of(status: int) -> None:
    assert _warnings(status) == []


@pytest.mark.parametrize("status", [302, 404, 503])
def test_an_error_and_the_answer_of_another_program_is_warned_of(status: int) -> None:
    (warning,) = _warnings(status)

    assert (warning["event"], warning["setting"]) == ("index_unreachable", "QDRANT_URL")
    assert warning["reason"].startswith(f"HTTP {status}")


def test_without_a_qdrant_server_in_the_settings_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_URL", "")
    with structlog.testing.capture_logs() as logged:
        warn_if_index_unreachable(load_settings()).join(30)

    assert logged == []


def _warnings(status: int) -> list[structlog.typing.EventDict]:
    with (
        scripted_http(lambda exchange: exchange.send(status)) as server,
        structlog.testing.capture_logs() as logged,
    ):
        warn_if_index_unreachable(load_settings(qdrant_url=server.url.removesuffix("/mcp"))).join(30)
    return [*logged]
