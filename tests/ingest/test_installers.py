"""Stdio servers whose command installs packages before it starts, as `npx` and `uvx` do."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anyio.to_thread
import psutil
import pytest

from query.calling.limits import CallLimits
from shared.catalog import Listing
from shared.errors import ServerTimeout
from shared.events import ServerAnnouncement
from shared.intents.intent import Intent
from shared.settings import Settings, load_settings
from shared.upstream import stdio
from tests.support.calling import calling, tool_of
from tests.support.hostile.processes import installed_stdio
from tests.support.waiting import eventually
from workers.dependencies import lister
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.turns import FetchInterrupted, LargePayloadSlots, StartTurns, interrupt_fetches

pytestmark = pytest.mark.process

PATIENT = Limits(timeout_s=30, start_timeout_s=60)


@contextmanager
def installing(cache: Path) -> Generator[Future[Listing]]:
    """List the server in a thread; the block begins while the installer writes its cache."""
    with ThreadPoolExecutor(1) as pool, finished([cache]):
        listing = pool.submit(fetch_tools_blocking, "s", installed_stdio(cache), PATIENT)
        eventually((cache / "half-written").exists)
        yield listing


def started_pids(cache: Path) -> list[int]:
    return [int(line) for line in (cache / "starts").read_text().split()]


def test_a_first_start_may_take_longer_than_a_listing(tmp_path: Path) -> None:
    listing = fetch_tools_blocking("s", installed_stdio(tmp_path, "3.5"), Limits(timeout_s=3, start_timeout_s=60))

    assert [definition.name for definition in listing.tools] == ["one"]


def test_an_installer_out_of_time_is_reported_with_the_time_that_it_had(tmp_path: Path) -> None:
    with pytest.raises(ServerTimeout, match=r"after 1\.5 s"):
        fetch_tools_blocking("s", installed_stdio(tmp_path), Limits(timeout_s=0.5, start_timeout_s=1.5))


def test_an_interrupted_installer_undoes_its_work_so_that_the_next_start_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "INSTALLER_GRACE_S", 60.0)  # on a busy machine it may take longer than usual
    with installing(tmp_path) as listing:
        interrupt_fetches()
        with pytest.raises(FetchInterrupted):
            listing.result(timeout=90)

    assert not (tmp_path / "half-written").exists()
    (tmp_path / "finish").touch()
    assert len(fetch_tools_blocking("s", installed_stdio(tmp_path), PATIENT).tools) == 1


def test_an_installer_that_ignores_sigterm_is_killed_after_its_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "INSTALLER_GRACE_S", 0.2)
    (tmp_path / "stubborn").touch()

    with installing(tmp_path) as listing:
        interrupt_fetches()
        with pytest.raises(FetchInterrupted):
            listing.result(timeout=30)

    (pid,) = started_pids(tmp_path)
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    assert (tmp_path / "half-written").exists()


@pytest.mark.anyio
async def test_a_call_that_ends_during_an_installation_leaves_it_running_for_the_next_call(tmp_path: Path) -> None:
    limits = CallLimits(timeout_s=2, start_timeout_s=60)

    async with calling({"s": installed_stdio(tmp_path)}, tool_of("s", "one"), limits=limits) as client:
        first = await client.call_tool("call_tool", {"name": "s:one", "arguments": {}})
        await anyio.to_thread.run_sync(eventually, (tmp_path / "half-written").exists)
        (tmp_path / "finish").touch()
        await anyio.to_thread.run_sync(eventually, (tmp_path / "installed").exists)
        await client.call_tool("call_tool", {"name": "s:one", "arguments": {}})

    assert first.is_error
    assert re.search(r"s: not started within (1\.\d+|2) s; the start continues", str(first.content))
    assert len(started_pids(tmp_path)) == 1


def test_only_a_start_after_a_success_must_be_as_quick_as_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_seen: list[float] = []
    outcomes: list[Listing | ServerTimeout] = [
        listing := Listing(declared_name="s", protocol_version="2025-11-25", tools=(), rejected=()),
        ServerTimeout("s", "no answer"),
        ServerTimeout("s", "no answer"),
        listing,
        listing,
    ]

    def fetch(_server: str, _target: object, limits: Limits, _try_acquire: object, **_: object) -> Listing:
        limits_seen.append(limits.start_timeout_s)
        if isinstance(outcome := outcomes[len(limits_seen) - 1], ServerTimeout):
            raise outcome
        return outcome

    monkeypatch.setattr("workers.fetch.lister.fetch_tools_blocking", fetch)
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": {"command": "npx"}}}))
    settings = load_settings(mcp_config=config)
    list_server = lister(settings, LargePayloadSlots(1), StartTurns(1))

    for _ in outcomes:
        try:
            list_server(intent_of("s"))
        except ServerTimeout:
            continue

    assert limits_seen == [300, 0, 300, 300, 0]


def test_few_servers_start_at_a_time_and_the_next_when_one_has_started(tmp_path: Path) -> None:
    caches, starts = [tmp_path / f"cache{number}" for number in range(4)], StartTurns(2)
    list_server = lister(settings_of(tmp_path, caches), LargePayloadSlots(1), starts)

    with ThreadPoolExecutor(len(caches)) as pool, finished(caches):
        listings = [pool.submit(list_server, intent_of(cache.name)) for cache in caches]
        for waiting in (2, 1, 0):
            eventually(lambda left=waiting: starts.waiting == left)  # type: ignore[misc]
            eventually(lambda: len(installing_now(caches)) == 2)
            (installing_now(caches)[0] / "finish").touch()

    assert [len(listing.result().tools) for listing in listings] == [1, 1, 1, 1]


def test_an_installation_that_takes_longer_than_a_listing_holds_up_no_other_start(tmp_path: Path) -> None:
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    settings = settings_of(tmp_path, [slow, quick]).model_copy(update={"listing_timeout_s": 5.0})
    list_server = lister(settings, LargePayloadSlots(1), StartTurns(1))
    quick.mkdir()
    (quick / "finish").touch()

    with ThreadPoolExecutor(2) as pool, finished([slow]):
        slow_listing = pool.submit(list_server, intent_of("slow"))
        eventually((slow / "half-written").exists)
        assert len(pool.submit(list_server, intent_of("quick")).result(timeout=30).tools) == 1
        assert not slow_listing.done()

    assert len(slow_listing.result().tools) == 1


@contextmanager
def finished(caches: Iterable[Path]) -> Generator[None]:
    """Let all installations finish at the end, also after a failed assertion."""
    try:
        yield
    finally:
        for cache in caches:
            cache.mkdir(exist_ok=True)
            (cache / "finish").touch()


def installing_now(caches: Iterable[Path]) -> list[Path]:
    return [cache for cache in caches if (cache / "half-written").exists()]


def settings_of(directory: Path, caches: Iterable[Path]) -> Settings:
    """Return settings with an mcp.json of one installer for each cache."""
    targets = {cache.name: installed_stdio(cache) for cache in caches}
    entries = {name: {"command": target.command, "args": target.args} for name, target in targets.items()}
    (directory / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    return load_settings(mcp_config=directory / "mcp.json")


def intent_of(server_id: str) -> Intent:
    announcement = ServerAnnouncement(server_id=server_id, transport="stdio")
    return Intent(server_id=server_id, status="running", announcement=announcement, source="test", desired=1)
