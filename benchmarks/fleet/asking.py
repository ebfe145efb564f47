"""A process with a client that calls find_tool over MCP at a steady rate.

As a program, `python -m benchmarks.fleet.asking URL RATE SEED` asks until its stdin is closed, and then prints how
long each answer took, in ms.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import anyio
from mcp import Client

from benchmarks.throughput.corpus import queries

QUERIES = 2_000


@contextmanager
def asking(url: str, rate: float, seed: int) -> Generator[list[float]]:
    """Ask until the block ends; the yielded list then holds the ms of each answer.

    Raises:
        RuntimeError: an answer was an error.
    """
    command = [sys.executable, "-m", "benchmarks.fleet.asking", url, str(rate), str(seed)]
    answered_ms: list[float] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()  # it has connected
            yield answered_ms
        except BaseException:
            process.kill()
            raise
        found, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"asking ended with {process.returncode}")
        answered_ms += json.loads(found)


async def find_tool(client: Client, **arguments: object) -> tuple[float, list[str]]:
    """Return the milliseconds of one call and the names of the tools found.

    Raises:
        RuntimeError: the answer is an error.
    """
    started = time.perf_counter()
    result = await client.call_tool("find_tool", arguments)
    elapsed_ms = (time.perf_counter() - started) * 1000
    if result.is_error or not result.structured_content:
        raise RuntimeError(f"find_tool answered {arguments} with {result.content}")
    return elapsed_ms, [str(tool["name"]) for tool in result.structured_content["tools"]]


async def _ask(url: str, rate: float, seed: int, stopped: threading.Event) -> list[float]:
    """Ask no more often than the rate, and less often where answers take longer than that."""
    asked = queries(QUERIES, seed)
    answered_ms: list[float] = []
    async with Client(url) as client:
        await find_tool(client, tool_description="ready")
        print("connected", flush=True)
        due_s = time.monotonic()
        while not stopped.is_set():
            elapsed_ms, _ = await find_tool(client, tool_description=asked[len(answered_ms) % QUERIES])
            answered_ms.append(round(elapsed_ms, 2))
            due_s = max(due_s + 1 / rate, time.monotonic())
            await anyio.sleep(max(0.0, due_s - time.monotonic()))
    return answered_ms


def _stop_with_stdin(stopped: threading.Event) -> None:
    sys.stdin.read()
    stopped.set()


def main() -> None:
    """Ask until stdin is closed."""
    url, rate, seed = sys.argv[1:]
    stopped = threading.Event()
    threading.Thread(target=_stop_with_stdin, args=(stopped,), daemon=True).start()
    print(json.dumps(anyio.run(_ask, url, float(rate), int(seed), stopped)))


if __name__ == "__main__":
    main()
