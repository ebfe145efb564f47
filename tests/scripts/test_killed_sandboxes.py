"""A killed sandbox ends its script with a true error; no sandbox outlives its client or its service."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import psutil
import pytest
from mcp import Client
from mcp.types import CallToolResult

from tests.scripts.site import SECRET, Site, facts, outcomes, sandboxes, value
from tests.support.processes import query_service
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def _process(name: str) -> psutil.Process:
    with anyio.fail_after(30):
        while True:
            for each in sandboxes():
                with suppress(psutil.Error):
                    if any(part.endswith(name) for part in each.cmdline()):
                        return each
            await anyio.sleep(0.01)


@pytest.mark.parametrize("name", ["sandbox.py", "/monty"])
async def test_kill_9_of_a_sandbox_leaves_the_service_answering_and_the_error_true(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCALE_SECRET", SECRET)
    answers: list[CallToolResult] = []

    async def run() -> None:
        answers.append(
            await site.run('print("began")\nawait call("files:say")\nwhile True:\n    await call("files:list")')
        )

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        process = await _process(name)
        assert SECRET not in str(process.environ())
        with anyio.fail_after(30):
            while not site.servers.received:  # noqa: ASYNC110  # a server of another thread fills it
                await anyio.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)

    (answer,) = answers
    assert answer.is_error
    assert "sandbox" in facts(answer)["error"]
    assert facts(answer)["log"] == "began\n"
    assert facts(answer)["line"] in (2, 4)
    assert outcomes(answer)[0] == ("files:say ok", 1)
    made = sum(count for _, count in outcomes(answer))
    assert made == len(site.servers.received)
    assert value(await site.run("1 + 1")) == 2


@pytest.mark.parametrize("ends", ["client", signal.SIGTERM, signal.SIGKILL])
async def test_no_sandbox_outlives_its_client_or_its_service(tmp_path: Path, ends: str | signal.Signals) -> None:
    source = 'import time\nfor n in range(16):\n    find("a file")\n    time.sleep(1.5)'

    with query_service(tmp_path, "-m", "query") as (running, address):
        service, processes = psutil.Process(running.process.pid), list[psutil.Process]()

        async def run() -> None:
            with suppress(Exception):  # the service may end first
                async with Client(f"{address}/mcp") as client:
                    await client.call_tool("run_script", {"source": source})

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await anyio.to_thread.run_sync(eventually, lambda: len(sandboxes(service)) == 2)
            processes = sandboxes(service)
            if isinstance(ends, signal.Signals):
                running.process.send_signal(ends)
            tasks.cancel_scope.cancel()
        _, alive = await anyio.to_thread.run_sync(psutil.wait_procs, processes, 15)

        assert alive == []
