"""Flower beside a real worker and a real Redis: what it shows of an ingestion, and to whom."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from shared.events import ServerAnnouncement, ServerUp
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import ScriptedServer, scripted_http
from tests.support.processes import Composition
from tests.support.redis_server import free_port
from tests.support.waiting import eventually
from workers.tasks import ACCEPT_EVENT, RECONCILE_SERVER, SWEEP_INTENTS

pytestmark = pytest.mark.redis

LOGIN = "ops:the-password-of-flower"
SECRET = "the-secret-of-the-server"


@dataclass(frozen=True)
class Flower:
    """A running Flower."""

    url: str

    def get(self, path: str, login: str | None = LOGIN, method: str = "GET") -> tuple[int, Any]:
        """Return status and content of a page, 0 while nobody answers."""
        headers = {"authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except OSError:
            return 0, b""

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Return the tasks that Flower has heard of, by name; the last of each."""
        status, body = self.get("/api/tasks")
        assert status == 200, body
        tasks: dict[str, dict[str, Any]] = json.loads(body)
        return {task["name"]: task for task in tasks.values() if task["name"]}


@contextmanager
def flower(composition: Composition) -> Generator[Flower]:
    """Run Flower as the composition does, on a loopback port, until the block ends."""
    running = Flower(f"http://127.0.0.1:{free_port()}")
    arguments = ("flower", "--address=127.0.0.1", f"--port={running.url.rpartition(':')[2]}")
    with composition.celery("flower", *arguments, FLOWER_BASIC_AUTH=LOGIN) as process:
        eventually(lambda: running.get("/api/workers")[0] == 200, 60, what=process.output())
        yield running


@pytest.fixture
def composition(own_redis_url: str, tmp_path: Path) -> Composition:
    return Composition(own_redis_url, tmp_path, {})


@pytest.fixture
def server() -> Generator[ScriptedServer]:
    pages = one_page(tool("read_file"))
    with scripted_http(lambda exchange: exchange.play(pages)) as running:
        yield running


def test_flower_shows_an_ingestion_by_readable_names_and_no_secret_and_to_those_alone_who_log_in(
    composition: Composition, server: ScriptedServer
) -> None:
    announcement = ServerAnnouncement(server_id="files", url=server.url, credential_ref="files")
    event = ServerUp(data=announcement).model_dump(mode="json")
    with (
        flower(composition) as watching,
        composition.worker(TOOLSCALE_CREDENTIAL_FILES=SECRET),
        Celery("producer", broker=composition.redis_url) as producer,
    ):
        eventually(lambda: SWEEP_INTENTS in watching.tasks(), 60, what="Flower hears of the worker")
        producer.send_task(ACCEPT_EVENT, args=[event], queue="toolscale")
        eventually(lambda: _state(watching, RECONCILE_SERVER) == "SUCCESS", 60, what="Flower shows the reconciliation")

        task = watching.tasks()[RECONCILE_SERVER]
        everything = watching.get("/api/tasks")[1] + watching.get("/tasks")[1]
        paths = ("/", "/tasks", "/workers", "/api/tasks", "/api/workers", "/api/queues/length")
        strangers = {watching.get(path, login)[0] for path in paths for login in (None, "ops:wrong", "other:ops")}
        commanded = watching.get(f"/api/task/async-apply/{RECONCILE_SERVER}", None, "POST")[0]

    assert "files" in task["args"]
    assert server.seen[-1].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET.encode() not in everything
    assert strangers == {401}
    assert commanded == 401


def _state(watching: Flower, name: str) -> str | None:
    found = watching.tasks().get(name)
    return found["state"] if found else None
