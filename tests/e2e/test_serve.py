"""`toolscale serve` as a person starts it: a real process, a real mcp.json, real MCP clients."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters

from tests.support.background import background_ended
from tests.support.hostile.processes import good_stdio
from tests.support.metrics import scraped
from tests.support.processes import BRISK, Composition, Running
from tests.support.waiting import eventually
from toolscale.client.instance import LOG

pytestmark = pytest.mark.process

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
TOOLSCALE = str(Path(sys.executable).with_name("toolscale"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    target = good_stdio()
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"good": {"command": target.command, "args": list(target.args)}}}))
    return path


@contextmanager
def serving(
    config: Path, *arguments: str, constants: Mapping[str, float] = BRISK, **environment: str
) -> Generator[tuple[Running, str]]:
    """Run `toolscale serve` over HTTP; yield the process and the URL it printed."""
    composition = Composition("", config.parent, {"REDIS_URL": "", "QDRANT_URL": "", **environment}, constants)
    command = ("-m", "toolscale", "serve", "--config", str(config), "--port", "0", *arguments)
    with composition.run("serve", *command) as running:
        running.wait_for("query_service_started")
        url = re.search(r"http://127\.0\.0\.1:\d+/mcp", running.output())
        assert url, running.output()
        yield running, url.group()


def ask(target: Any, question: str = "the first tool of all", mode: str = "auto") -> dict[str, Any]:
    """Return find_tool's answer, once the catalogue holds something."""

    async def call() -> dict[str, Any]:
        async with Client(target, mode=mode) as client:
            for _ in range(900):
                result = await client.call_tool("find_tool", {"tool_description": question})
                answer: dict[str, Any] = result.structured_content or {}
                if answer["token_metrics"]["baseline_tokens"]:
                    return answer
                await anyio.sleep(0.1)
        raise AssertionError("nothing was found in 900 attempts")

    return anyio.run(call)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_finds_the_configured_servers_tools_over_http(config: Path, mode: str) -> None:
    with serving(config) as (running, url):
        answer = ask(url, mode=mode)

        assert answer["tools"][0]["name"].startswith("good:")
        assert answer["token_metrics"]["tokens_saved"] >= 0
        assert running.stop() == 0


@pytest.mark.cold
def test_an_agent_that_starts_it_over_stdio_finds_the_tools(config: Path) -> None:
    environment = {"TOOLSCALE_DATA_DIR": str(config.parent), "PATH": os.environ["PATH"]}
    arguments = ["-m", "toolscale", "serve", "--stdio", "--config", str(config)]

    with background_ended(config.parent):
        answer = ask(StdioServerParameters(command=sys.executable, args=arguments, env=environment))

    assert answer["tools"][0]["name"].startswith("good:")


@pytest.mark.cold
def test_it_ends_without_a_message_when_the_client_closes_stdin(config: Path) -> None:
    with (
        background_ended(config.parent),
        subprocess.Popen(
            [sys.executable, "-m", "toolscale", "serve", "--stdio", "--config", str(config)],
            env={**os.environ, "REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_DATA_DIR": str(config.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        answered = json.loads(process.stdout.readline())
        eventually(lambda: "server_indexed" in (config.parent / LOG).read_text())

        process.stdin.close()

        assert answered["result"]["serverInfo"]["name"] == "toolscale"
        assert process.wait(60) == 0
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")


@pytest.mark.slow
def test_it_prints_how_to_connect_a_client(config: Path) -> None:
    with serving(config) as (running, url):
        output = running.output()

    assert f"claude mcp add --transport http toolscale {url}" in output
    assert re.search(r"claude mcp add toolscale -- \S+ -m toolscale serve --stdio --config \S+mcp\.json", output)
    block = json.loads(output[output.index('{\n  "mcpServers"') : output.index("\n}\n") + 2])
    assert block["mcpServers"]["toolscale"]["url"] == url


@pytest.mark.slow
def test_after_a_crash_the_catalogue_is_there_at_once_and_nothing_is_embedded_again(config: Path) -> None:
    with serving(config) as (first, url):
        eventually(lambda: '"event": "server_indexed"' in first.output(), what=first.output())
        before = ask(url)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(60)

    with serving(config) as (second, url):
        eventually(lambda: '"event": "server_indexed"' in second.output(), what=second.output())
        after = ask(url)

    indexed = [json.loads(line) for line in second.output().splitlines() if '"event": "server_indexed"' in line]
    assert [(line["written"], line["removed"]) for line in indexed] == [(0, 0)]
    for found in (before, after):
        # the cursor is a part of the answer, and is random
        del found["token_metrics"]["answer_tokens"], found["token_metrics"]["net_tokens_saved"]
    assert after["token_metrics"] == before["token_metrics"]


@pytest.mark.slow
def test_a_second_process_on_the_same_data_is_rejected(config: Path) -> None:
    with (
        serving(config),
        Composition("", config.parent, {"REDIS_URL": "", "QDRANT_URL": ""}).run(
            "second", "-m", "toolscale", "serve", "--config", str(config), "--port", "0"
        ) as second,
    ):
        assert second.process.wait(60) == 2
        assert "another Toolscale process uses" in second.output()


def test_one_process_shows_the_metrics_of_both_sides(config: Path) -> None:
    with serving(config) as (_, url):
        ask(url)
        metrics = url.removesuffix("/mcp") + "/metrics"
        eventually(
            lambda: scraped(metrics)['toolscale_reconciles_total{result="changed"}'],
            what="the commit",
        )
        found = scraped(metrics)

    assert found['toolscale_requests_total{outcome="ok",tool="find_tool"}'] >= 1
    assert 'toolscale_tokens_saved_total{encoding="cl100k_base"}' in found
    assert found['toolscale_servers{state="listed"}'] == 1
    assert found["toolscale_intents_up"] == 1
