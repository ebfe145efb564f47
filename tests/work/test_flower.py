"""Flower beside a real worker and a real Redis: what it shows of an ingestion, and to whom."""

from __future__ import annotations

import base64
import json
import re
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
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from workers.celery_app import ACCEPT_EVENT, RECONCILE_SERVER, SWEEP_INTENTS

pytestmark = [pytest.mark.process, pytest.mark.redis]

ROOT = Path(__file__).parents[2]
LOGIN = "ops:the-password-of-flower"
SECRET = "the-secret-of-the-server"
# a second message of a server, as the sweep may send: its run does nothing
NOTHING_DONE = ("'another run has the lease'", "'not due'")


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

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks with an event."""
        status, body = self.get("/api/tasks")
        assert status == 200, body
        tasks: dict[str, dict[str, Any]] = json.loads(body)
        return [task for task in tasks.values() if task["name"]]


@contextmanager
def flower(composition: Composition) -> Generator[Flower]:
    """Run Flower as the composition does, on a loopback port, until the block ends."""
    running = Flower(f"http://127.0.0.1:{free_port()}")
    arguments = ("--address=127.0.0.1", f"--port={running.url.rpartition(':')[2]}", _columns_of_the_composition())
    with composition.celery("flower", "flower", *arguments, FLOWER_BASIC_AUTH=LOGIN) as process:
        eventually(lambda: running.get("/api/workers")[0] == 200, what=process.output())
        yield running


def _columns_of_the_composition() -> str:
    (option,) = re.findall(r"--tasks_columns=\S+", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    return str(option)


@pytest.fixture
def composition(own_redis_url: str, tmp_path: Path) -> Composition:
    return Composition(own_redis_url, tmp_path, {})


@pytest.fixture
def server() -> Generator[ScriptedServer]:
    pages = one_page(tool("read_file"))
    with scripted_http(lambda exchange: exchange.play(pages)) as running:
        yield running


@pytest.fixture
def broken() -> Generator[ScriptedServer]:
    with scripted_http(lambda exchange: exchange.send(500)) as running:
        yield running


def test_flower_shows_each_server_and_its_outcome_and_no_secret_and_only_to_those_with_its_password(
    composition: Composition, server: ScriptedServer, broken: ScriptedServer
) -> None:
    with (
        flower(composition) as watching,
        composition.worker(TOOLSCALE_CREDENTIAL_FILES=SECRET),
        Celery("producer", broker=composition.redis_url) as producer,
    ):
        eventually(lambda: json.loads(watching.get("/workers?json=1")[1])["data"], what="Flower knows the worker")
        producer.send_task(SWEEP_INTENTS, queue="toolscale")
        for server_id, url in (("files", server.url), ("broken", broken.url)):
            announcement = ServerAnnouncement(server_id=server_id, url=url, credential_ref="files")
            event = ServerUp(data=announcement).model_dump(mode="json")
            producer.send_task(ACCEPT_EVENT, args=[event], queue="toolscale")
        eventually(lambda: _outcomes(watching).keys() >= {"files", "broken"}, what="Flower shows both servers")

        outcomes, names = _outcomes(watching), {task["name"] for task in watching.tasks()}
        page = watching.get("/tasks")[1].decode()
        everything = json.dumps(watching.tasks()) + page
        paths = ("/", "/tasks", "/workers", "/api/tasks", "/api/workers", "/api/queues/length")
        strangers = {watching.get(path, login)[0] for path in paths for login in (None, "ops:wrong", "other:ops")}
        commanded = watching.get(f"/api/task/async-apply/{RECONCILE_SERVER}", None, "POST")[0]

    assert outcomes["files"] == ("SUCCESS", "'1 tool, 1 written'", None)
    assert outcomes["broken"] == ("FAILURE", None, "ServerFailed('broken', 'HTTP 500')")
    assert names == {RECONCILE_SERVER}
    assert {f'data-column="{column}"' in page for column in ("args", "result", "exception")} == {True}
    assert server.seen[-1].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in everything
    assert strangers == {401}
    assert commanded == 401


def _outcomes(watching: Flower) -> dict[str, tuple[str, str | None, str | None]]:
    """Return state, result and exception of a reconciliation of each server that listed its tools."""
    ended = [task for task in watching.tasks() if task["state"] in ("SUCCESS", "FAILURE")]
    listed = [task for task in ended if task["result"] not in NOTHING_DONE]
    return {task["args"].strip("[]()',\""): (task["state"], task["result"], task["exception"]) for task in listed}
