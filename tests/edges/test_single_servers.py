"""Servers of which only one can run are listed and called by one process, and never fail."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from mcp import Client

from tests.edges.serving import call, program, serving
from tests.edges.test_containers import Engine
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

KINDS = ("lock", "port", "database", "pid-file", "slow-end")


def entries(tmp_path: Path, **more: Any) -> dict[str, Any]:
    found = dict[str, Any]()
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        port = [str(free_port())] if kind == "port" else []
        found[kind] = program("single_server", str(tmp_path / kind), kind, *port, **more)
    return found


def starts(tmp_path: Path, kind: str) -> int:
    return len((tmp_path / kind / "starts").read_text().split())


def refused(tmp_path: Path) -> list[str]:
    return [kind for kind in KINDS if (tmp_path / kind / "refused").exists()]


def finds(url: str, tool: str) -> bool:
    async def ask() -> bool:
        async with Client(url) as client:
            return "inputSchema" in str(await client.call_tool("describe_tool", {"names": [tool]}))

    return anyio.run(ask)


def found(url: str, tool: str) -> None:
    eventually(lambda: finds(url, tool), what=f"the tool {tool}")


def restarted(tmp_path: Path, kind: str, times: int) -> None:
    eventually(lambda: starts(tmp_path, kind) > times, what=f"a restart of {kind}")


def another(engine: Engine, before: set[int]) -> None:
    eventually(lambda: set(engine.running()) - before, what="a new container")


def test_one_process_is_listed_called_and_listed_again(tmp_path: Path) -> None:
    with serving(tmp_path, entries(tmp_path), TOOLSCALE_STDIO_RESYNC_INTERVAL_S="1") as (running, url):
        running.wait_for('"server_indexed"', times=len(KINDS))

        for kind in KINDS:
            assert call(url, f"{kind}:echo") == "done"
            assert call(url, f"{kind}:grow") == "done"
        for kind in KINDS:
            found(url, f"{kind}:extra2")
            assert call(url, f"{kind}:extra2") == "done"

        assert {kind: starts(tmp_path, kind) for kind in KINDS} == dict.fromkeys(KINDS, 1)
        assert refused(tmp_path) == []
        assert "server_listing_failed" not in running.output()


def test_a_process_that_ends_makes_way_for_the_next(tmp_path: Path) -> None:
    config = entries(tmp_path)
    with serving(tmp_path, config, TOOLSCALE_STDIO_RESYNC_INTERVAL_S="1") as (running, url):
        running.wait_for('"server_indexed"', times=len(KINDS))
        for changed in range(1, 4):  # another entry needs another process
            for entry in config.values():
                entry["env"] = {"CHANGED": str(changed)}
            (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": config}))
            for kind in KINDS:
                restarted(tmp_path, kind, changed)
                assert call(url, f"{kind}:echo") == "done"

        assert refused(tmp_path) == []
        assert "server_listing_failed" not in running.output()


def test_a_renamed_entry_takes_over(tmp_path: Path) -> None:
    config = entries(tmp_path)
    with serving(tmp_path, config) as (running, url):
        running.wait_for('"server_indexed"', times=len(KINDS))
        assert {call(url, f"{kind}:echo") for kind in KINDS} == {"done"}

        renamed = {f"new-{kind}": entry for kind, entry in config.items()}
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": renamed}))

        for kind in KINDS:
            found(url, f"new-{kind}:echo")
            assert call(url, f"new-{kind}:echo") == "done"
        assert refused(tmp_path) == []
        assert "server_listing_failed" not in running.output()


def test_calls_at_the_start_wait_for_the_listing_and_use_its_process(tmp_path: Path) -> None:
    with serving(tmp_path, entries(tmp_path)) as (running, _):
        running.wait_for('"server_indexed"', times=len(KINDS))
        running.stop()

    with serving(tmp_path, json.loads((tmp_path / "mcp.json").read_text())["mcpServers"]) as (running, url):
        assert {call(url, f"{kind}:echo") for kind in KINDS} == {"done"}  # the tools of the last run are known
        running.wait_for('"query_service_started"')

        assert refused(tmp_path) == []
        assert "server_listing_failed" not in running.output()


def test_a_process_of_one_caller_is_the_one_that_is_listed(tmp_path: Path) -> None:
    servers = entries(tmp_path, labels={"stateful": "true"})
    with serving(tmp_path, servers, TOOLSCALE_STDIO_RESYNC_INTERVAL_S="1") as (running, url):
        running.wait_for('"server_indexed"', times=len(KINDS))

        for kind in KINDS:
            assert call(url, f"{kind}:grow") == "done"
        for kind in KINDS:
            found(url, f"{kind}:extra2")

        assert refused(tmp_path) == []
        assert {starts(tmp_path, kind) for kind in KINDS} == {1}


def test_a_crashed_process_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, entries(tmp_path), TOOLSCALE_STDIO_RESYNC_INTERVAL_S="1") as (running, url):
        running.wait_for('"server_indexed"', times=len(KINDS))
        for kind in set(KINDS) - {"pid-file"}:  # that file stays, whoever starts it
            assert call(url, f"{kind}:echo") == "done"
            (pid,) = (tmp_path / kind / "starts").read_text().split()
            psutil.Process(int(pid)).send_signal(signal.SIGKILL)
            restarted(tmp_path, kind, 1)
            assert call(url, f"{kind}:echo") == "done"

        assert refused(tmp_path) == []


@pytest.mark.slow
def test_a_container_with_a_name_never_fails(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "bin")
    named = {"named": engine.entry("-i", "--rm", "--name", "only-one")}
    with serving(tmp_path, named, TOOLSCALE_STDIO_RESYNC_INTERVAL_S="1") as (running, url):
        running.wait_for('"server_indexed"')
        assert call(url, "named:echo") == "done"
        for changed in range(3):
            named["named"]["env"]["CHANGED"] = str(changed)
            (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": named}))
            before = set(engine.running())
            another(engine, before)
            assert call(url, "named:echo") == "done"

        assert "server_listing_failed" not in running.output()
