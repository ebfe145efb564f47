"""A client that calls find_tool over MCP repeatedly, during all faults of the service."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle

import anyio
from mcp import Client

from tests.chaos.fleet import Fleet, a_text
from tests.chaos.history import Offer
from tests.chaos.judging import ANSWER_WITHIN_S, Judge

PAUSE_S = 0.2


@contextmanager
def asking(url: str, fleet: Fleet, judge: Judge, rng: random.Random) -> Generator[None]:
    """Ask from a thread until the block ends: in turns for what is always offered, and for something else.

    Raises: at the end, what the thread ended in.
    """
    stopped = threading.Event()
    with ThreadPoolExecutor(1, "asker") as pool:
        asked = pool.submit(anyio.run, _ask_until, stopped, url, fleet, judge, rng)
        try:
            yield
        finally:
            stopped.set()
    asked.result()


async def _ask_until(stopped: threading.Event, url: str, fleet: Fleet, judge: Judge, rng: random.Random) -> None:
    for wanted in cycle(fleet.always):
        for offer in (wanted, None):
            if stopped.is_set():
                return
            await _ask(url, judge, offer, offer[2] if offer else a_text(rng))
            await anyio.sleep(PAUSE_S)


async def _ask(url: str, judge: Judge, wanted: Offer | None, text: str) -> None:
    question = judge.ask(wanted)
    try:
        with anyio.fail_after(ANSWER_WITHIN_S):
            # a new connection for each: the previous service may be gone
            async with Client(url, cache=None) as client:
                result = await client.call_tool("find_tool", {"tool_description": text, "detail": "detailed"})
    except Exception as error:  # noqa: BLE001  # judged, whatever it is
        judge.failed(question, error)
    else:
        judge.answered(question, result)
