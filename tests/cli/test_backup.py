"""`toolscale backup` and `restore`: everything is wiped, and every server, toolset and saving returns."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from query.usage.usage import CatalogueSize, RowKey, open_usage, today
from shared.catalog import Scope
from shared.errors import BackupInvalid
from shared.index.tools import ToolIndex
from shared.index.versions import open_index_versions
from shared.intents.intents import open_intents
from shared.service.redis import connect
from shared.settings import load_settings
from shared.text.embedding import FastEmbedder
from shared.toolset import Toolset
from tests.e2e.test_serve import ask, serving
from tests.support.builders import World, definition, down, listing, up, write_path
from tests.support.fakes import FakeIndex
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.processes import Composition
from tests.support.qdrant_server import delete_collections, emptied_qdrant, own_qdrant_url
from tests.support.running_api import running_api
from tests.support.waiting import eventually
from tests.support.warm import run
from toolscale.app import app
from workers.ingest import reconcile

pytestmark = pytest.mark.process

QDRANT_URL = own_qdrant_url()  # other tests do not see it
DEV = {"name": "dev", "tools": ["files"], "description": "", "budget_tokens": 900, "enforce": True}
USED = {"answers": 3, "calls": 2, "bytes": 70}
KINDS = ("definitions", "servers", "toolsets", "savings", "catalogue_sizes")


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set an embedded installation in this directory."""
    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(path))
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_URL", "TOOLSCALE_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("toolscale.app._configure_logging", lambda: None)
    return path


@pytest.fixture
def index() -> FakeIndex:
    return FakeIndex()


@pytest.fixture
def served(data_dir: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Serve the stores in the directory, without a worker."""
    with running_api(data_dir, index) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        yield data_dir


@contextmanager
def opened_toolsets() -> Generator[ToolIndex]:
    """Yield the index of the settings, for its toolsets."""
    settings = load_settings()
    versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    with closing(versions.store):
        versions.ensure_own_version()
        yield versions.current()[0].index


@pytest.fixture
def server() -> Generator[str]:
    """Yield the URL of a server with two tools."""
    pages = one_page(tool("read_text"), tool("write_text"))
    with scripted_http(lambda exchange: exchange.play(pages)) as running:
        yield running.url


def toolscale(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def record_use() -> None:
    with closing(open_usage(load_settings())) as usage:
        usage.add({RowKey(today(), "ann", "files", "read_text"): USED})
        usage.put_size(today(), CatalogueSize(1, 2, 300))


def used() -> tuple[Any, Any]:
    with closing(open_usage(load_settings())) as usage:
        rows, sizes = usage.rows(today(), today()), usage.sizes(today(), today())
    return rows.get(RowKey(today(), "ann", "files", "read_text")), sizes.get(today())


def results(restored: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    return {kind: (restored[kind]["added"], restored[kind]["present"]) for kind in KINDS}


def test_a_wiped_data_directory_is_restored_by_the_service(data_dir: Path, tmp_path: Path, server: str) -> None:
    config, backup = data_dir / "mcp.json", str(tmp_path / "backup")
    config.write_text('{"mcpServers": {}}')
    with serving(config) as (running, url):
        toolscale("emit", "up", "files", "--url", server)
        running.wait_for('"event": "server_indexed"')
        httpx2.put(url.replace("/mcp", "/toolsets/dev"), json=DEV, trust_env=False).raise_for_status()
        found = ask(url, "read a text")["tools"]
        record_use()
        manifest = toolscale("backup", backup)
    shutil.rmtree(data_dir)
    data_dir.mkdir()
    config.write_text('{"mcpServers": {}}')

    with serving(config) as (running, url):
        first = results(toolscale("restore", backup))
        running.wait_for('"event": "server_indexed"')
        assert ask(url, "read a text")["tools"] == found
        assert httpx2.get(url.replace("/mcp", "/toolsets/dev"), trust_env=False).json() == DEV
        second = results(toolscale("restore", backup))

    lines = manifest["lines"]
    assert (lines["definitions"], lines["servers"], lines["toolsets"], lines["catalogue_sizes"]) == (1, 1, 1, 1)
    # a service that waited for its commands has written today's size of its own
    assert sum(first.pop("catalogue_sizes")) == 1
    assert first == {kind: (lines[kind], 0) for kind in KINDS if kind != "catalogue_sizes"}
    assert {kind: second[kind] for kind in KINDS if kind != "savings"} == {
        kind: (0, 1) for kind in KINDS if kind != "savings"
    }
    assert used()[0] == USED


@contextmanager
def own_index(redis_url: str, data_dir: Path, patch: pytest.MonkeyPatch, engine: str) -> Generator[Callable[[], None]]:
    """Set a scaled installation; yield a function that wipes its index."""
    patch.setenv("REDIS_URL", redis_url)
    if engine == "edge":
        yield lambda: shutil.rmtree(data_dir / "index")
        return
    patch.setenv("QDRANT_URL", str(QDRANT_URL))
    with emptied_qdrant():
        yield lambda: delete_collections(str(QDRANT_URL))


@pytest.mark.redis
@pytest.mark.parametrize("engine", ["edge", *(["server"] if QDRANT_URL else [])])
def test_a_wiped_redis_and_a_wiped_index_are_restored(
    own_redis_url: str, data_dir: Path, tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    backup = str(tmp_path / "backup")
    with ExitStack() as opened:
        wipe_index = opened.enter_context(own_index(own_redis_url, data_dir, monkeypatch, engine))
        composition = Composition(own_redis_url, data_dir, {})
        with composition.worker(), closing(open_intents(load_settings())) as intents:
            intents.record(up("files", url=server), due_in_s=0)
            intents.record(up("old", url=server), due_in_s=0)
            intents.record(down("old"), due_in_s=0)
            eventually(lambda: (intent := intents.intent("files")) and intent.committed == 1)
            eventually(lambda: (intent := intents.intent("old")) and not intent.is_lagging)
        with opened_toolsets() as toolsets:
            toolsets.put_toolset(Toolset.model_validate(DEV))
        record_use()
        manifest = toolscale("backup", backup)
        with connect(own_redis_url) as client:
            client.flushall()
        wipe_index()

        first = results(toolscale("restore", backup))
        again = results(toolscale("restore", backup))

        with composition.worker(), closing(open_intents(load_settings())) as intents:
            eventually(lambda: (intent := intents.intent("files")) and intent.listed_at)
            stopped = intents.intent("old")
        with opened_toolsets() as index:
            found = index.tools(Scope(), limit=10).tools
            kept = index.toolsets()

    assert manifest["lines"] == {"definitions": 1, "servers": 2, "toolsets": 1, "savings": 1, "catalogue_sizes": 1}
    assert first == {kind: (manifest["lines"][kind], 0) for kind in KINDS}
    assert again == {kind: (0, manifest["lines"][kind]) for kind in KINDS}
    assert stopped is not None
    assert stopped.status == "stopped"
    assert {tool.qualified_name for tool in found} == {"files:read_text", "files:write_text"}
    assert kept == [Toolset.model_validate(DEV)]
    assert used() == (USED, CatalogueSize(1, 2, 300))


def test_a_restored_catalogue_holds_the_changes_of_the_meantime(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, deps = str(tmp_path / "backup"), write_path(data_dir).deps
    world = World({"s": listing(definition("a"), definition("b"))})
    deps = replace(deps, list_server=world.list_server, definition_changes="notify")
    deps.intents.record(up("s"), due_in_s=0)
    reconcile("s", deps)
    with running_api(data_dir) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        toolscale("backup", backup)
    shutil.rmtree(data_dir)
    data_dir.mkdir()

    with running_api(data_dir) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        toolscale("restore", backup)
    after = write_path(data_dir)
    world.servers["s"] = listing(definition("a", "sends it away"), definition("b"))
    reconcile("s", replace(after.deps, list_server=world.list_server, definition_changes="approve"))

    assert after.tool_names() == {"b"}


def test_present_data_stays_and_missing_counts_are_added(
    data_dir: Path, tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("files", url="http://127.0.0.1:1/old"), due_in_s=0)
        index.put_toolset(Toolset.model_validate(DEV))
    record_use()
    with running_api(data_dir, index) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        toolscale("backup", str(tmp_path / "backup"))
    newer = Toolset(name="dev", tools=("mail",))
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("files", url="http://127.0.0.1:1/new"), due_in_s=0)
        index.put_toolset(newer)
    (data_dir / "savings.sqlite3").unlink()
    with closing(open_usage(load_settings())) as usage:
        usage.add({RowKey(today(), "ann", "files", "read_text"): {"answers": 1, "calls": 9, "failed_calls": 1}})

    with running_api(data_dir, index) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        restored = results(toolscale("restore", str(tmp_path / "backup")))

    assert restored == {
        "definitions": (0, 0),
        "servers": (0, 1),
        "toolsets": (0, 1),
        "savings": (1, 0),
        "catalogue_sizes": (1, 0),
    }
    with closing(open_intents(load_settings())) as intents:
        intent = intents.intent("files")
    assert index.toolsets() == [newer]
    assert intent is not None
    assert intent.announcement.url == "http://127.0.0.1:1/new"
    assert used()[0] == {"answers": 3, "calls": 9, "bytes": 70, "failed_calls": 1}


def test_the_files_are_private_and_a_backup_is_never_overwritten(served: Path, tmp_path: Path) -> None:
    backup = tmp_path / "deep" / "backup"
    toolscale("backup", str(backup))

    assert {path.name for path in backup.iterdir()} == {"backup.json", *(f"{kind}.jsonl" for kind in KINDS)}
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (backup, *backup.iterdir()))
    with pytest.raises(BackupInvalid, match="is not empty"):
        toolscale("backup", str(backup))


@pytest.mark.parametrize("name", ["backup.json", "servers.jsonl"])
def test_an_incomplete_backup_is_refused(served: Path, tmp_path: Path, name: str) -> None:
    backup = tmp_path / "backup"
    toolscale("backup", str(backup))
    (backup / name).unlink()

    with pytest.raises(BackupInvalid, match=f"{name}: No such file.*complete backup"):
        toolscale("restore", str(backup))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("not JSON", "line 2: expected JSON"),
        ('{"version": 2}', "version: expected 1"),
        ("{}", "server_id"),
        ("", "line 2"),
    ],
)
def test_nothing_is_restored_from_a_backup_with_an_invalid_line(
    served: Path, tmp_path: Path, line: str, reason: str
) -> None:
    backup = tmp_path / "backup"
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("files"), due_in_s=0)
    toolscale("backup", str(backup))
    servers = backup / "servers.jsonl"
    servers.write_text(servers.read_text() + line + "\n")

    with pytest.raises(BackupInvalid, match=reason):
        toolscale("restore", str(backup))

    with closing(open_intents(load_settings())) as intents:
        assert [intent.desired for intent in intents.intents()] == [1]


def test_a_backup_of_the_release_before_is_restored_without_its_sizes_of_servers(
    data_dir: Path, tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    record_use()
    with running_api(data_dir, index) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        toolscale("backup", str(backup))
    (backup / "catalogue_sizes.jsonl").rename(backup / "sizes.jsonl")
    (backup / "sizes.jsonl").write_text('{"version": 1, "day": "2026-11-21", "server": "s", "tools": 1, "tokens": 9}\n')
    manifest = json.loads((backup / "backup.json").read_text())
    manifest["lines"]["sizes"] = manifest["lines"].pop("catalogue_sizes")
    (backup / "backup.json").write_text(json.dumps(manifest) + "\n")
    shutil.rmtree(data_dir)
    data_dir.mkdir()

    with running_api(data_dir, index) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        restored = toolscale("restore", str(backup))

    assert restored.keys() == {"definitions", "servers", "toolsets", "savings"}
    assert used() == (USED, None)


def test_a_backup_with_a_missing_line_is_refused(served: Path, tmp_path: Path) -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.record(up("files"), due_in_s=0)
    toolscale("backup", str(tmp_path / "backup"))
    (tmp_path / "backup" / "servers.jsonl").write_text("")

    with pytest.raises(BackupInvalid, match="expected 1 lines"):
        toolscale("restore", str(tmp_path / "backup"))


def test_an_error_is_one_line_on_stderr(data_dir: Path, tmp_path: Path) -> None:
    done = run([sys.executable, "-m", "toolscale", "restore", str(tmp_path / "none")])

    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
