"""`helm rollback`: the processes of the previous release work on the data of this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path

import httpx2
import pytest

from shared.service.redis import connect
from tests.e2e.test_serve import ask, serving
from tests.support.builders import changed, up
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.processes import good_stdio
from tests.support.hostile.scripted_http import scripted_http
from tests.support.processes import Composition
from tests.support.waiting import eventually
from tests.support.warm import cold_starts, run
from workers.intents.redis_store import RedisIntents
from workers.intents.transitions import RetryPolicy

ROOT = Path(__file__).parents[2]
# The last commit whose stored documents have no version; the commit of the previous release replaces it.
PREVIOUS = "8e0df2e"
PACKAGES = ("workers", "query", "shared", "toolscale")

pytestmark = [pytest.mark.slow, pytest.mark.cold]


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
        found = [tool["name"] for tool in ask(url)["tools"]]
    # the server cannot be listed again, so the tools are those that this release stored
    config.write_text(json.dumps({"mcpServers": {"good": {"command": "no-such-program"}}}))

    with code_of(previous), serving(config) as (running, url):
        assert [tool["name"] for tool in ask(url)["tools"]] == found
        kept = httpx2.get(toolsets_of(url), trust_env=False).json()["toolsets"]

    assert [(each["name"], each["tools"], each["enforce"]) for each in kept] == [("dev", ["good"], True)]
    assert "_unreadable" not in running.output()


@pytest.mark.redis
def test_a_worker_of_the_previous_release_reconciles_the_intents_of_this_one(
    own_redis_url: str, tmp_path: Path, previous: Path
) -> None:
    composition = Composition(own_redis_url, tmp_path, {})
    before, after = one_page(tool("read_text")), one_page(tool("read_text"), tool("write_text"))
    pages = [before]
    with (
        scripted_http(lambda exchange: exchange.play(pages[0])) as server,
        closing(RedisIntents(connect(own_redis_url), RetryPolicy(1.0, 4.0))) as intents,
    ):
        with composition.worker():
            intents.record(up("files", url=server.url), due_in_s=0)
            eventually(lambda: is_listed(intents, 1), 30)
        intents.record(changed("files"), due_in_s=0)
        pages[0] = after

        with code_of(previous), composition.worker("previous") as worker:
            eventually(lambda: is_listed(intents, 2), 30, what=worker.output())

    assert '"written": 1' in worker.output()
    assert "_unreadable" not in worker.output()
    stored = connect(own_redis_url).get("toolscale:intent:files")
    assert "version" not in json.loads(str(stored))  # the previous release wrote it, and this one read it above


def is_listed(intents: RedisIntents, generation: int) -> bool:
    intent = intents.intent("files")
    return intent is not None and intent.committed >= generation
