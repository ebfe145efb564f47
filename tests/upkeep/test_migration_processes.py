"""Another model takes over in real processes: killed in the middle, and with a model that really is another."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from query.catalogue import live_catalogue, live_index
from query.find import find_tool
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.index.client import ServerClient
from shared.index.server import ServerEngine
from shared.intents import times
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect as connect_redis
from shared.settings import Settings, load_settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import bundled_model
from shared.upstream.mcp_json import Config
from tests.support.builders import definition, listing, up
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.index_versions import (
    NEW,
    OLD,
    Catalogue,
    active_version,
    index_version,
    reconcile_all,
    tools_found,
)
from tests.support.qdrant_cluster import qdrant_nodes
from tests.support.waiting import eventually
from toolscale.embedded.composition import Embedded, run_embedded

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SERVERS = [f"server-{number:02}" for number in range(40)]

# The bundled network under the name, and with the pooling, of another model that fastembed knows.
OTHER_MODEL = "BAAI/bge-small-en-v1.5"
OTHER_REPOSITORY = "models--Qdrant--bge-small-en-v1.5-onnx-Q"


SHARE = """
import sys
from shared.index.client import ServerClient
from shared.index.server import ServerEngine
from shared.service.redis import connect as connect_redis
from tests.support.index_versions import NEW, Catalogue, migrate
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy

engine = ServerEngine(ServerClient(sys.argv[1], None))
intents = Intents(RedisStorage(connect_redis(sys.argv[2]), lease_s=1.0), RetryPolicy(0.05, 1.0))
deps = Catalogue(engine, intents).worker(NEW)
print("ready", flush=True)
sys.stdin.readline()
deps.rollout.request_once()
while deps.versions.store.versions().next_version:
    migrate(deps, lambda server_id: print(server_id, flush=True), slice_s=0.2)
"""


@pytest.mark.redis
def test_processes_share_a_migration_and_finish_the_work_of_a_killed_one(own_redis_url: str, tmp_path: Path) -> None:
    with qdrant_nodes(tmp_path, 1) as (node,), ExitStack() as stack:
        engine = stack.enter_context(closing(ServerEngine(ServerClient(node.url, None))))
        intents = stack.enter_context(
            closing(Intents(RedisStorage(connect_redis(own_redis_url)), RetryPolicy(0.05, 1.0)))
        )
        shop = Catalogue(engine, intents)
        shop.world.servers = {name: listing(definition("read"), definition(f"of_{name}")) for name in SERVERS}
        for name in SERVERS:
            intents.record(up(name), due_in_s=0)
        worker = shop.worker(OLD)
        reconcile_all(worker)
        before = tools_found(worker)

        command = [sys.executable, "-c", SHARE, node.url, own_redis_url]
        pipe = subprocess.PIPE
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT))
            for _ in range(3)
        ]
        for process in processes:
            stack.callback(process.kill)
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("\n")
            process.stdin.flush()
        killed, *others = processes
        assert killed.stdout
        assert killed.stdout.readline()
        killed.kill()
        visited = [set(process.communicate(timeout=60)[0].split()) for process in others]

        assert active_version(worker).version == index_version(NEW)
        assert tools_found(worker) == before
        assert all(visited)
        assert len(visited[0] & visited[1]) < len(SERVERS)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a directory of its own, on a machine that has downloaded the other model."""
    for name in ("REDIS_URL", "QDRANT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "models"))
    downloaded = tmp_path / "models" / OTHER_REPOSITORY
    shutil.copytree(bundled_model(), downloaded / "snapshots" / "1")
    (downloaded / "snapshots" / "1" / "model.onnx").rename(downloaded / "snapshots" / "1" / "model_optimized.onnx")
    (downloaded / "refs").mkdir()
    (downloaded / "refs" / "main").write_text("1")
    monkeypatch.setattr(times, "REDELIVER_AFTER_S", 0.5)
    return load_settings(data_dir=tmp_path / "data")


def test_serve_with_another_model_answers_from_the_old_one_until_the_new_one_is_there(settings: Settings) -> None:
    pages = one_page(tool("get_current_time"), tool("read_file"), tool("send_mail"))
    asked = FindRequest(tool_description="what time is it?", limit=1)
    with scripted_http(lambda exchange: exchange.play(pages)) as server:
        with run_embedded(settings) as first:
            first.announce(_config(server.url))
            eventually(lambda: _found(first) == 3)
            assert _model(first) == BUNDLED_MODEL

        other = settings.model_copy(update={"embedding_model": OTHER_MODEL})
        with run_embedded(other) as second, live_index(second.versions, every_s=0.05) as followed:
            answers = live_catalogue(followed, other.model_copy(update={"no_match_threshold": -1.0}))
            second.announce(_config(server.url))
            models: list[str] = []

            def switched() -> bool:
                models.append(followed.current().version.model)
                assert find_tool(asked, Scope(), answers)[0].tools[0].name == "s:get_current_time"
                return models[-1] == OTHER_MODEL

            eventually(switched)

            assert models[0] == BUNDLED_MODEL
            assert _found(second) == 3
            assert not find_tool(asked, Scope(), answers)[0].keywords_only


def _config(url: str) -> Config:
    from shared.events import ServerAnnouncement
    from shared.upstream.target import HttpTarget

    return Config(announcements=(ServerAnnouncement(server_id="s", url=url),), targets={"s": HttpTarget(url)})


def _found(embedded: Embedded) -> int:
    return len(embedded.deps.index.tools(Scope(), limit=10).tools)


def _model(embedded: Embedded) -> str:
    return embedded.versions.current()[0].version.model
