"""`helm rollback`: the processes of the previous release work on the data of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import httpx2
import pytest

from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect
from tests.e2e.test_serve import ask, serving
from tests.support.builders import changed, up
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.processes import good_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.ports import free_port
from tests.support.processes import Composition, Running
from tests.support.qdrant_server import emptied_qdrant, own_qdrant_url
from tests.support.waiting import eventually
from tests.support.warm import cold_starts, run

ROOT = Path(__file__).parents[2]
# The last commit whose stored documents have no version; the commit of the previous release replaces it.
PREVIOUS = "8e0df2e"
QDRANT_URL = own_qdrant_url()  # other tests do not see it
# It has settings for what are constants now.
SOON = {"TOOLSCALE_REDELIVER_AFTER_S": "1", "TOOLSCALE_SWEEP_INTERVAL_S": "0.5"}
PACKAGES = ("workers", "query", "shared", "toolscale")

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.cold]


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the code of PREVIOUS."""
    archived = subprocess.run(["git", "archive", PREVIOUS, *PACKAGES], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"the history has no commit {PREVIOUS}")
    directory = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(archived.stdout)) as files:
        files.extractall(directory, filter="data")
    return directory


@contextmanager
def code_of(directory: Path) -> Generator[None]:
    """Start processes with the code in this directory until the block ends."""
    with pytest.MonkeyPatch.context() as patch, cold_starts():
        patch.setenv("PYTHONPATH", str(directory))
        patch.chdir(directory)  # Python and Celery import from there first
        loaded = run([sys.executable, "-c", "import shared, workers; print(shared.__file__, workers.__file__)"])
        assert all(Path(file).is_relative_to(directory) for file in loaded.stdout.split()), loaded
        yield


def toolsets_of(url: str) -> str:
    return url.replace("/mcp", "/toolsets")


def test_the_previous_release_serves_the_data_directory_of_this_one(tmp_path: Path, previous: Path) -> None:
    target = good_stdio()
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"good": {"command": target.command, "args": list(target.args)}}}))
    toolset = {"name": "dev", "tools": ["good"], "enforce": True}
    with serving(config) as (running, url):
        running.wait_for('"event": "server_indexed"')
        httpx2.put(f"{toolsets_of(url)}/dev", json=toolset, trust_env=False).raise_for_status()
        found = {tool["name"].partition(":")[0] for tool in ask(url)["tools"]}

    with code_of(previous), serving(config, constants={}, **SOON) as (running, url):
        running.wait_for('"event": "server_indexed"')  # its points have another schema, so it lists the server again
        assert {tool["name"].partition(":")[0] for tool in ask(url)["tools"]} == found == {"good"}
        kept = httpx2.get(toolsets_of(url), trust_env=False).json()["toolsets"]

    assert [(each["name"], each["tools"], each["enforce"]) for each in kept] == [("dev", ["good"], True)]
    assert "_unreadable" not in running.output()


@pytest.fixture(params=["edge", *(["server"] if QDRANT_URL else [])])
def composition(request: pytest.FixtureRequest, own_redis_url: str, tmp_path: Path) -> Generator[Composition]:
    """A scaled composition on Qdrant Edge, which one process opens at a time, or on the server at QDRANT_URL."""
    if request.param == "edge":
        yield Composition(own_redis_url, tmp_path, {})
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QDRANT_URL", str(QDRANT_URL))
        with emptied_qdrant():
            yield Composition(own_redis_url, tmp_path, {"QDRANT_URL": str(QDRANT_URL)})


@pytest.mark.redis
def test_worker_and_query_service_of_the_previous_release_use_the_stores_of_this_one(
    composition: Composition, previous: Path
) -> None:
    before, after = one_page(tool("read_text")), one_page(tool("read_text"), tool("write_text"))
    pages = [before]
    with (
        scripted_http(lambda exchange: exchange.play(pages[0])) as server,
        closing(Intents(RedisStorage(connect(composition.redis_url)), RetryPolicy(1.0, 4.0))) as intents,
    ):
        with composition.worker():
            intents.record(up("files", url=server.url), due_in_s=0)
            eventually(lambda: is_listed(intents, 1))
        intents.record(changed("files"), due_in_s=0)
        pages[0] = after

        with code_of(previous):
            earlier = replace(composition, constants={})
            with earlier.worker("previous", **SOON) as worker:
                eventually(lambda: is_listed(intents, 2), what=worker.output())
            with querying(earlier) as (reader, url):
                assert len(ask(url, "read or write a text")["tools"]) == 2
        with connect(composition.redis_url) as client:
            stored = str(client.get("toolscale:intent:files"))
        # the previous worker may have listed the server twice, since its collection was new
        latest = intents.record(changed("files"), due_in_s=0).intent.desired
        with composition.worker("next"):
            eventually(lambda: is_listed(intents, latest))
        with querying(composition) as (_, url):
            assert len(ask(url, "read or write a text")["tools"]) == 2

    assert '"written": 2' in worker.output()  # its points have another schema
    assert "_unreadable" not in worker.output() + reader.output()
    assert "version" not in json.loads(stored)  # the previous release wrote it, and this one read it above


@contextmanager
def querying(composition: Composition) -> Generator[tuple[Running, str]]:
    """Run the query service; yield it and its URL."""
    port = free_port()
    environment = {"TOOLSCALE_PORT": str(port)}
    with composition.run("query", "-m", "query", **environment) as running:
        running.wait_for("query_service_started")
        yield running, f"http://127.0.0.1:{port}/mcp"


def is_listed(intents: Intents, generation: int) -> bool:
    intent = intents.intent("files")
    return intent is not None and intent.committed >= generation
