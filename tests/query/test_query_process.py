"""The query service as a process of its own, over an index on disk and over the network's loopback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from typer.testing import CliRunner

from query.catalogue import Catalogue
from query.listener import open_listener
from query.mcp import build_server
from query.records import Ledger
from query.service import HttpServer
from query.tools.registry import builtin_tools
from shared.index import open_engine
from shared.index.versions import IndexStore, IndexVersion
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from tests.support.builders import up
from tests.support.fakes import FakeEmbedder, FakeIndex, make_tool
from tests.support.filled import fill
from tests.support.waiting import eventually
from toolscale.app import app as toolscale

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
QUESTION = {"tool_description": "what time is it in Tokyo?", "limit": 1}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory whose index holds two tools, of 30 and 70 tokens."""
    directory = tmp_path_factory.mktemp("data")
    embedder = FastEmbedder()
    tools = [
        make_tool("clock", "get_current_time", "Get the current time in a timezone", tokens=30),
        make_tool("files", "read_file", "Read a file from disk", tokens=70),
    ]
    with closing(IndexStore(open_engine(load_settings(data_dir=directory)))) as store:
        version = IndexVersion(embedder.model, embedder.dimension)
        store.ensure_active_version(version)
        store.mark_complete(is_filled=True)
        index = store.index(version)
        fill(index, *tools, embedder=embedder)
    return directory


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    return {"TOOLSCALE_DATA_DIR": str(data_dir), "TOOLSCALE_PORT": "0", "PATH": "/usr/bin:/bin", **more}


@contextmanager
def query_process(data_dir: Path, *arguments: str, **more: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "query", *arguments]
    env, pipe = environment(data_dir, **more), subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url(data_dir: Path) -> Iterator[str]:
    with query_process(data_dir) as process:
        yield url_of(process)


def url_of(process: subprocess.Popen[str]) -> str:
    """Return the address in the line that the process logs when it listens."""
    assert process.stderr is not None
    for line in process.stderr:
        if (logged := json.loads(line))["event"] == "query_service_started":
            return str(logged["url"])
    raise AssertionError(f"the query service ended with {process.wait()}")


def beside(url: str, path: str) -> str:
    return url.removesuffix("/mcp") + path


def wait_for(status: int, url: str) -> None:
    """Wait until the address answers with this status."""
    eventually(lambda: httpx2.get(url).status_code == status, what=f"{status} from {url}")


def check(answer: dict[str, Any]) -> None:
    assert [tool["name"] for tool in answer["tools"]] == ["clock:get_current_time"]
    metrics = answer["token_metrics"]
    assert (metrics["baseline_tokens"], metrics["returned_tokens"], metrics["tokens_saved"]) == (100, 30, 70)
    assert metrics["savings_percentage"] == 70


def test_ls_shows_the_states_of_a_service_without_an_intent_store(url: str) -> None:
    listed = CliRunner().invoke(toolscale, ["ls", "--url", url])
    recording = CliRunner().invoke(toolscale, ["diff", "clock", "--url", url])

    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:3]] == [
        ["clock", "listed", "1"],
        ["files", "listed", "1"],
    ]
    assert "does not offer this" in str(recording.exception)


@pytest.mark.redis
def test_ls_shows_the_intents_of_workers_where_the_service_has_redis(own_redis_url: str, tmp_path: Path) -> None:
    with closing(open_intents(load_settings(redis_url=own_redis_url))) as intents:
        intents.record(up("docs"), due_in_s=600)
    with query_process(tmp_path, REDIS_URL=own_redis_url) as process:
        listed = CliRunner().invoke(toolscale, ["ls", "--url", url_of(process)])

    assert listed.stdout.splitlines()[1].split() == ["docs", "waiting", "never", "in", "9", "min"]
    assert listed.stdout.splitlines()[2] == "1 server: 1 waiting"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["2026-07-28", "legacy"])
async def test_both_protocol_eras_find_a_tool_over_http(url: str, mode: str) -> None:
    wait_for(200, beside(url, "/readyz"))

    async with Client(url, mode=mode) as client:
        result = await client.call_tool("find_tool", QUESTION)

    check(result.structured_content)


def test_a_call_needs_no_handshake_so_that_any_replica_can_answer_it(url: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "find_tool", "arguments": QUESTION}}
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}

    answer = httpx2.post(url, json=call, headers=headers)

    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    check(answer.json()["result"]["structuredContent"])


def test_a_signal_ends_the_service_with_exit_code_0_and_the_index_can_be_opened_again(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with query_process(tmp_path) as process:
            wait_for(200, beside(url_of(process), "/healthz"))

            process.send_signal(number)
            out, err = process.communicate(timeout=60)

        assert process.returncode == 0
        assert json.loads(err.splitlines()[-1])["event"] == "query_service_stopped"
        assert out == ""


def test_every_line_on_stderr_is_json(tmp_path: Path) -> None:
    with query_process(tmp_path, TOOLSCALE_LOG_LEVEL="DEBUG") as process:
        wait_for(200, beside(url_of(process), "/healthz"))
        process.terminate()
        _, err = process.communicate(timeout=60)

    loggers = {json.loads(line)["logger"] for line in err.splitlines()}
    assert "query.service" in loggers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"TOOLSCALE_PORT": "70000"}, "setting port"),
        ({"TOOLSCALE_LOG_LEVEL": "LOUD"}, "log_level"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_one_line_and_ends_the_start(
    tmp_path: Path, setting: dict[str, str], named: str
) -> None:
    with query_process(tmp_path, **setting) as process:
        _, err = process.communicate(timeout=60)

    (line,) = [json.loads(line) for line in err.splitlines()]
    assert process.returncode == 1
    assert (line["event"], line["kind"]) == ("query_service_failed", "ConfigInvalid")
    assert named in line["reason"]


def test_readiness_follows_the_index_and_the_service_stops_when_told() -> None:
    index = FakeIndex()
    mcp = build_server(builtin_tools(Catalogue(index, FakeEmbedder(), Ledger(index))))
    server = HttpServer(mcp, open_listener(load_settings(port=0)), index=index)
    running = threading.Thread(target=server.run)
    running.start()

    try:
        wait_for(200, beside(server.url, "/readyz"))
        index.is_down = True
        wait_for(503, beside(server.url, "/readyz"))
        wait_for(200, beside(server.url, "/healthz"))
        index.is_down = False
        wait_for(200, beside(server.url, "/readyz"))
    finally:
        server.stop()
        running.join(timeout=20)

    assert not running.is_alive()


@pytest.mark.slow
def test_a_name_that_the_operator_allows_reaches_the_service(tmp_path: Path) -> None:
    with query_process(tmp_path, TOOLSCALE_ALLOWED_HTTP_HOSTS="query") as process:
        url = url_of(process)
        allowed = httpx2.post(url, json={}, headers={"host": "query:8765"}).status_code
        refused = httpx2.post(url, json={}, headers={"host": "other:8765"}).status_code

    assert (allowed, refused) == (400, 421)
