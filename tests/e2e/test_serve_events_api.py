"""The events API next to `/mcp`, in a real `toolscale serve`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.builders import up
from tests.support.events_api import Answer, Producer
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.processes import Composition
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

TOKEN = "the-operators-own-token"


@pytest.fixture
def composition(tmp_path: Path) -> Composition:
    return Composition("", tmp_path, {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_EVENTS_TOKEN": TOKEN})


def test_a_server_that_an_event_announces_over_http_is_indexed(composition: Composition) -> None:
    pages = one_page(tool("a"))
    with (
        scripted_http(lambda exchange: exchange.play(pages)) as server,
        composition.run("serve", "-m", "toolscale", "serve", "--port", "0") as running,
    ):
        running.wait_for("query_service_started")
        (url,) = set(re.findall(r"(http://127\.0\.0\.1:\d+)/mcp", running.output()))
        event = up("docs", url=server.url).model_dump(mode="json")

        assert Producer(url, "wrong").post(event).status == 401
        answer = Producer(url, TOKEN).post(event)

        assert answer == Answer(202, {"status": 202, "id": event["id"], "server_id": "docs", "generation": 1})
        eventually(lambda: '"event": "server_indexed"' in running.output(), what=running.output())
        assert running.stop() == 0
        assert TOKEN not in running.output()
