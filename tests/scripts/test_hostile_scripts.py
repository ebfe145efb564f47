"""Hostile scripts end within their limits, and the service goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

from query.scripts.script import CALLS, MEMORY_BYTES, PROCESS_BYTES, WAITING_S
from tests.scripts.hostile import AT_A_LIMIT, HOSTILE, WELL
from tests.scripts.site import SECRET, Site, facts, running_site, sandboxes, texts, value

pytestmark = [pytest.mark.anyio, pytest.mark.process]

# What a script may grow this process by: its result, and nothing of what it keeps.
_GROWTH_BYTES = MEMORY_BYTES // 2
# Of the program that starts the interpreter, and of its libraries.
_BASE_BYTES = 64 << 20


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

    with _peak_bytes() as peaks:
        answer = await shared.run(HOSTILE[name])

    text = "\n".join(texts(answer))
    # the limit on waiting covers all of it: no server of this test is slow
    assert time.monotonic() - started < 2 * WAITING_S
    assert bool(answer.is_error) == (name not in WELL)
    assert ("exceeded its limit of" in facts(answer).get("error", "")) == (name in AT_A_LIMIT)
    assert SECRET not in text
    assert "root:" not in text
    assert f"uid={os.getuid()}" not in text
    assert len(text) < 100_000
    assert len(shared.servers.received) <= CALLS
    assert all(peak < PROCESS_BYTES + _BASE_BYTES for peak in peaks.values())
    assert psutil.Process().memory_info().rss - before < _GROWTH_BYTES
    assert not sandboxes()
    assert value(await shared.run("1 + 1")) == 2


@contextmanager
def _peak_bytes() -> Generator[dict[int, int]]:
    """Yield the most resident memory of each process of scripts, by its id, which a thread reads during the block."""
    peaks, has_ended = dict[int, int](), threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.01):
            for process in sandboxes():
                with suppress(psutil.Error):
                    peaks[process.pid] = max(peaks.get(process.pid, 0), process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        has_ended.set()
        watcher.join()


# --- limits and their names ---


@pytest.mark.parametrize(
    ("source", "limit", "line"),
    [
        ("x = 1\n[0] * 10**9", "256 MiB of memory", 2),
        ('await call("files:say", {"a": "x" * 100_000_000})', "256 MiB of memory", None),
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
    assert facts(answer).get("line") == line
    made = sum(each.get("count", 1) for each in facts(answer)["calls"])
    assert made == (64 if "64" in limit else "while" in source)


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


async def test_bytes_are_counted_not_characters(shared: Site) -> None:
    refused = await shared.run('"é" * 2_200_000')
    caught = await shared.run(
        'try:\n    await call("files:say", {"a": "é" * 2_200_000})\nexcept TypeError as error:\n    print(error)\n1'
    )
    sent = await shared.run('await call("files:fail", {"a": "é" * 1_900_000})')

    assert "4,194,304" in facts(refused)["error"]
    assert "4,194,304" in facts(caught)["log"]
    assert facts(caught)["calls"] == []
    assert facts(sent)["error"] == "ToolError: it failed"
