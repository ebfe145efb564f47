"""Hostile scripts end within their limits, and the service goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import psutil
import pytest

from query.scripts.script import (
    AT_ONCE,
    CALLS,
    MEMORY_BYTES,
    PROCESS_BYTES,
    WAITING_S,
    Reach,
    Returned,
    Script,
    SpelledOut,
)
from tests.scripts.hostile import AT_A_LIMIT, HOSTILE, WELL
from tests.scripts.site import SECRET, Site, facts, outcomes, respond, running_site, sandboxes, texts, value
from tests.support.hostile.messages import result
from tests.support.hostile.scripted_http import Exchange

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
        ('await call("files:say", {"a": "x" * 100_000_000})', "MiB of memory", None),
        ('await call("files:say")\nwhile True:\n    pass', "1 s of processor time between calls", 1),
        ('for n in range(100):\n    await call("files:say")', "64 calls", 2),
        ('x = 1\nfor n in range(100):\n    find("x")', "16 searches", 3),
        ("import time\nfor n in range(400):\n    time.sleep(0)", "320 calls, sleeps and looked-up names", 3),
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


class _Slow(Reach):
    """Takes its time for each call, and reads the memory of this process meanwhile."""

    def __init__(self) -> None:
        self.most_bytes = 0

    async def refusal(self, calls: Sequence[SpelledOut]) -> None: ...

    async def make(self, tool: str, arguments: dict[str, Any]) -> Returned:
        await anyio.sleep(0.2)
        self.most_bytes = max(self.most_bytes, psutil.Process().memory_info().rss)
        return Returned(None, tool, "ok")

    async def find(self, query: str) -> list[str]:
        return []

    async def report(self, ended: int, last: str) -> None: ...


async def test_calls_that_wait_for_their_turn_wait_outside_the_service() -> None:
    reach, before = _Slow(), psutil.Process().memory_info().rss
    source = (
        "import asyncio\ns = '😀' + 'a' * 4_000_000\n"
        "len(await asyncio.gather(*[call('a:b', {'s': s}) for n in range(64)]))"
    )

    outcome = await Script(source, reach).run()

    assert outcome.result == "64", outcome.error
    # each has 4 MB on the way, and with this character 16 MB in memory
    assert reach.most_bytes - before < (AT_ONCE + 2) * (24 << 20)


@pytest.mark.parametrize("depth", [150, 250, 900, 950, 975, 985, 1_000])
async def test_a_deep_argument_or_result_leaves_the_calls_in_the_answer(shared: Site, depth: int) -> None:
    def respond_deep(exchange: Exchange) -> None:
        request = exchange.request_json
        is_deep = request["params"]["name"] == "list"
        text = "[" * depth + "]" * depth if is_deep else "said"
        if not is_deep:
            time.sleep(0.2)
        exchange.send_json(result(request, {"content": [{"type": "text", "text": text}]}))

    shared.servers.on_call = {"files": respond_deep, "time": respond_deep}
    deep = f"x = 1\nfor n in range({depth}):\n    x = [x]"
    try:
        both = 'asyncio.gather(call("time:say"), call("files:say", {"x": x}))'
        sent = await shared.run(f"import asyncio\n{deep}\nawait {both}")
        returned = await shared.run('import asyncio\nlen(await asyncio.gather(call("time:say"), call("files:list")))')
    finally:
        shared.servers.on_call = dict.fromkeys(shared.servers.on_call, respond)

    assert ("time:say ok", 1) in outcomes(sent)
    assert {name for name, _ in outcomes(returned)} >= {"time:say ok", "files:list ok"}
