"""Hostile scripts end within their limits, and the service goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from query.scripts.script import CALLS, MEMORY_BYTES, WAITING_S
from tests.scripts.hostile import HOSTILE
from tests.scripts.site import SECRET, Site, facts, running_site, texts, value

pytestmark = [pytest.mark.anyio, pytest.mark.process]

# What a script may grow this process by: its result, and nothing of what it keeps.
_GROWTH_BYTES = MEMORY_BYTES // 2


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    with running_site() as site:
        yield site


def test_there_are_forty() -> None:
    assert len(HOSTILE) == 40


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_script_ends_and_reads_nothing_of_the_host(
    shared: Site, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCALE_SECRET", SECRET)
    before = psutil.Process().memory_info().rss
    shared.servers.received.clear()
    started = time.monotonic()

    answer = await shared.run(HOSTILE[name])

    text = "\n".join(texts(answer))
    # the limit on waiting covers all of it: no server of this test is slow
    assert time.monotonic() - started < 2 * WAITING_S
    assert SECRET not in text
    assert "root:" not in text
    assert f"uid={os.getuid()}" not in text
    assert len(text) < 100_000
    assert len(shared.servers.received) <= CALLS
    assert psutil.Process().memory_info().rss - before < _GROWTH_BYTES
    assert not _sandboxes()
    assert value(await shared.run("1 + 1")) == 2


def _sandboxes() -> list[psutil.Process]:
    """Return the processes of scripts that are there, with their interpreters."""
    return [each for each in psutil.Process().children(recursive=True) if _is_sandbox(each)]


def _is_sandbox(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return any(Path(part).name in ("sandbox.py", "monty") for part in command)


# --- limits and their names ---


@pytest.mark.parametrize(
    ("source", "limit", "line"),
    [
        ("x = 1\n[0] * 10**9", "256 MiB of memory", 2),
        ('await call("files:say")\nwhile True:\n    pass', "1 s of processor time between calls", 1),
        ('for n in range(100):\n    await call("files:say")', "64 calls", 2),
        ('x = 1\nfor n in range(100):\n    find("x")', "16 searches", 3),
        ("import time\ntime.sleep(31)", "30 s of running and waiting in all", 2),
    ],
)
async def test_a_script_that_exceeds_a_limit_ends_with_its_name_the_line_and_its_calls(
    shared: Site, source: str, limit: str, line: int
) -> None:
    answer = await shared.run(source)

    assert answer.is_error
    assert limit in facts(answer)["error"]
    assert facts(answer)["line"] == line
    made = sum(each.get("count", 1) for each in facts(answer)["calls"])
    assert made == (64 if "64" in limit else source.count("files:say"))


async def test_processor_time_between_calls_is_bounded_not_that_of_all_together(shared: Site) -> None:
    # each part takes some tenths of a second
    answer = await shared.run(
        'for n in range(8):\n    for _ in range(3_000_000):\n        pass\n    await call("files:list", {"n": n})'
    )

    assert not answer.is_error, texts(answer)


async def test_a_log_is_cut(shared: Site) -> None:
    answer = await shared.run('for n in range(1000):\n    print("a" * 100)\n1')

    assert value(answer) == 1
    assert 4_000 <= len(facts(answer)["log"]) < 4_100


async def test_waiting_in_all_is_bounded_while_a_call_takes_its_own_time(
    shared: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query.scripts.script.WAITING_S", 1.0)

    asleep = await shared.run("import time\ntime.sleep(20)")
    called = await shared.run('import asyncio\nawait asyncio.gather(*[call("files:say") for n in range(60)])\n1')

    assert asleep.is_error
    assert "in all" in facts(asleep)["error"]
    assert value(called) == 1
