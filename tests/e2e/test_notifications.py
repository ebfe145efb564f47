"""A tool that a running server adds is found without any event, and long before the resync."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.metrics import scraped
from tests.support.notifying import NotifyingServer, notifying_server
from tests.support.ports import free_port
from tests.support.processes import Composition, Running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow]


@contextmanager
def configured(directory: Path) -> Generator[NotifyingServer]:
    """Run a telling server that the `mcp.json` of this directory names."""
    with notifying_server("http", directory / "tools", "first") as server:
        config = {"mcpServers": {"telling": {"url": server.target.url}}}
        (directory / "mcp.json").write_text(json.dumps(config), encoding="utf-8")
        yield server


def indexed(process: Running, offered: int) -> bool:
    lines = [line for line in process.output().splitlines() if '"event": "server_indexed"' in line]
    return any(json.loads(line)["offered"] == offered for line in lines)


def test_serve_finds_a_tool_that_a_server_added(tmp_path: Path) -> None:
    environment = {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_LOG_LEVEL": "DEBUG"}
    composition = Composition("", tmp_path, environment)
    command = ("-m", "toolscale", "serve", "--config", str(tmp_path / "mcp.json"), "--port", "0")
    with configured(tmp_path) as server, composition.run("serve", *command) as serve:
        serve.wait_for('"event": "subscription_opened"')

        server.offer("first", "second")

        eventually(lambda: indexed(serve, offered=2))
        assert serve.stop() == 0


@pytest.mark.redis
def test_a_separate_notifications_process_makes_a_worker_list_the_change(own_redis_url: str, tmp_path: Path) -> None:
    port = free_port()
    environment = {
        "TOOLSCALE_MCP_CONFIG": str(tmp_path / "mcp.json"),
        "TOOLSCALE_LOG_LEVEL": "DEBUG",
        "QDRANT_URL": "",
    }
    composition = Composition(own_redis_url, tmp_path, environment)
    with configured(tmp_path) as server, composition.worker() as worker:
        eventually(lambda: indexed(worker, offered=1))
        with composition.run(
            "notifications", "-m", "workers.notifications", TOOLSCALE_METRICS_PORT=str(port)
        ) as listening:
            listening.wait_for('"event": "subscription_opened"')

            server.offer("first", "second")

            eventually(lambda: indexed(worker, offered=2))
            assert httpx2.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
            found = scraped(f"http://127.0.0.1:{port}/metrics")
            assert found['toolscale_subscription_servers{state="connected"}'] == 1
            assert found['toolscale_events_total{outcome="recorded"}'] >= 1
            assert listening.stop() == 0
