"""A killed sandbox ends its script with a true error, and the service answers."""

from __future__ import annotations

import os
import signal

import anyio
import psutil
import pytest
from mcp.types import CallToolResult

from tests.scripts.site import SECRET, Site, facts, outcomes, value

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def _process(name: str) -> psutil.Process:
    with anyio.fail_after(30):
        while True:
            for each in psutil.Process().children(recursive=True):
                try:
                    command = each.cmdline()
                except psutil.Error:
                    continue
                if any(part.endswith(name) for part in command):
                    return each
            await anyio.sleep(0.01)


@pytest.mark.parametrize("name", ["sandbox.py", "/monty"])
async def test_kill_9_of_a_sandbox_leaves_the_service_answering_and_the_error_true(
    site: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCALE_SECRET", SECRET)
    answers: list[CallToolResult] = []

    async def run() -> None:
        answers.append(await site.run('await call("files:say")\nwhile True:\n    await call("files:list")'))

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
    assert outcomes(answer)[0] == ("files:say ok", 1)
    made = sum(count for _, count in outcomes(answer))
    assert made == len(site.servers.received)
    assert value(await site.run("1 + 1")) == 2
