"""One script of a caller: its process, its limits, and the calls that it makes.

The process asks for each call, so a script reaches nothing but what `Reach` returns to it. Whatever ends the script,
calls in flight are awaited: their servers act in any case, and the outcome lists each of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import structlog
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic_core import from_json

from shared.upstream.messages import holds_more_values

if TYPE_CHECKING:
    from anyio.abc import ByteSendStream, Process, TaskGroup

SOURCE_BYTES = 100_000
CALLS = 64
FINDS = 16
WAITING_S = 30.0
"""Seconds of a script in which none of its calls is in flight: of running, of sleeping, and of waiting for a turn."""
TURN_S = 1.0
"""Processor time between two calls."""
MEMORY_BYTES = 256 << 20
PROCESS_BYTES = MEMORY_BYTES * 3 // 2
"""Of the interpreter, with the script's values, and of the process that started it, with the result."""
VALUE_BYTES = 4 << 20
"""Of the last expression, and of the arguments of a call, as JSON: as large as a result of a server may be."""
MAX_VALUES = 50_000
"""Of the arguments of a call, as many as a request over HTTP may hold."""
LOG_CHARACTERS = 4_000
ERROR_CHARACTERS = 1_000
AT_ONCE = 8
"""Calls of one script in flight; the caller has more, for its other requests."""

SUSPENSIONS = 4 * (CALLS + FINDS)
"""Two of each call, and one of each sleep and of each name that is looked up outside the script."""

# A text of JSON within a line of JSON has an escape for each quotation mark.
_LINE_BYTES = 2 * VALUE_BYTES + 1_000
_LIMITS = {
    "memory_bytes": MEMORY_BYTES,
    "process_bytes": PROCESS_BYTES,
    "process_s": int(2 * WAITING_S),
    "turn_s": TURN_S,
    "waiting_s": WAITING_S,
    "suspensions": SUSPENSIONS,
    "value_bytes": VALUE_BYTES,
    "log_characters": LOG_CHARACTERS,
    "error_characters": ERROR_CHARACTERS,
}
_log = structlog.get_logger()

_SANDBOX = Path(__file__).with_name("sandbox.py")

_WAITED = f"{WAITING_S:g} s of running and waiting in all"
_TURN = f"{TURN_S:g} s of processor time between calls"
# The beginnings of the sandbox's errors, and the limit that each of them is about.
_EXCEEDED = {
    "TimeoutError: turn time limit": _TURN,
    "the sandbox ended: monty worker killed after": _TURN,
    "TimeoutError: feed time limit": _WAITED,
    "total sleep": _WAITED,
    "MemoryError": f"{MEMORY_BYTES >> 20} MiB of memory",
    "no memory is left": f"{PROCESS_BYTES >> 20} MiB of memory of its sandbox",
    "RuntimeError: suspension limit": f"{SUSPENSIONS} calls, sleeps and looked-up names in all",
}


@dataclass(frozen=True, slots=True)
class Returned:
    """What a call returned: a value, or an error for the script to catch; `tokens` are those of its result's texts.

    With `needs_user`, the call cannot be made within a script.
    """

    server: str | None
    tool: str
    outcome: str
    value: Any = None
    error: str | None = None
    tokens: int = 0
    needs_user: bool = False


@dataclass(frozen=True, slots=True)
class SpelledOut:
    """A call whose tool and names of arguments are literals in the source."""

    tool: str
    names: Sequence[str]
    line: int


class Reach(Protocol):
    """All that a script reaches."""

    async def refusal(self, calls: Sequence[SpelledOut]) -> tuple[str, int] | None:
        """Return why one of these calls will be refused, and its line."""
        ...

    async def make(self, tool: str, arguments: dict[str, Any]) -> Returned:
        """Return the result of one call."""
        ...

    async def find(self, query: str) -> list[str]:
        """Return the signatures of the tools that fit.

        Raises:
            SearchFailed: the search is not allowed, or failed.
        """
        ...

    async def report(self, ended: int, last: str) -> None:
        """Report how many calls have ended, and the last of them."""
        ...


@dataclass(slots=True)
class Outcome:
    """How a script ended: with its result as JSON, or with an error, at a line where one is known."""

    result: str | None = None
    error: str | None = None
    line: int | None = None
    log: str = ""
    calls: list[Returned] = field(default_factory=list[Returned])


class SearchFailed(Exception):
    """Why a search of a script found nothing; the script may catch it as ToolError."""


class Script:
    """A run of one script."""

    def __init__(self, source: str, reach: Reach, at_once: int = AT_ONCE) -> None:
        """`at_once` of its calls may be in flight."""
        self._first = {"source": source, "limits": _LIMITS}
        self._reach = reach
        self._outcome = Outcome()
        self._line: int | None = None  # of the last call or search
        self._scope = anyio.CancelScope()
        self._turns = anyio.CapacityLimiter(min(at_once, AT_ONCE))
        self._sending = anyio.Lock()
        self._asked = Counter[str]()
        self._in_flight = 0
        self._left_s = WAITING_S
        self._has_ended = False

    async def run(self) -> Outcome:
        """Return the outcome, after all calls have ended."""
        async with _sandbox() as process, anyio.create_task_group() as calls:
            assert process.stdin is not None
            assert process.stdout is not None
            with self._scope:
                self._scope.deadline = anyio.current_time() + self._left_s
                try:
                    await self._send(process.stdin, self._first)
                    await self._serve(process, calls)
                except (
                    anyio.BrokenResourceError,
                    anyio.ClosedResourceError,
                    anyio.EndOfStream,
                    anyio.IncompleteRead,
                    OSError,
                ):
                    self._end("the sandbox process ended before the script did")
                except Exception:  # noqa: BLE001  # the answer has the calls, whatever happens
                    _log.exception("script_failed")
                    self._end("internal error")
            if self._scope.cancelled_caught and not self._has_ended:
                self._end(f"the script exceeded its limit of {_WAITED}")
            with suppress(ProcessLookupError):
                process.kill()
        return self._outcome

    async def _serve(self, process: Process, calls: TaskGroup) -> None:
        """Answer the process until the script has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        while not self._has_ended:
            try:
                line_of_json = await lines.receive_until(b"\n", _LINE_BYTES)
                if holds_more_values(line_of_json, MAX_VALUES):
                    return self._end(f"the script sent more than {MAX_VALUES:,} values at once, which is the limit")
                message = from_json(line_of_json)
            except ValueError:  # it reads as many levels as the arguments of a request may have
                return self._end("the script sent a value that is nested too deeply")
            except anyio.DelimiterNotFound:
                return self._end(f"the script sent more than {VALUE_BYTES >> 20} MiB at once, which is the limit")
            self._line = message.get("line") or self._line
            await self._answer(message, process.stdin, calls)
        return None

    async def _answer(self, message: Mapping[str, Any], stdin: ByteSendStream, calls: TaskGroup) -> None:
        """Do what one message of the process says."""
        match message:
            case {"print": str(text)}:
                self._outcome.log += text
            case {"check": spelled_out}:
                await self._check([SpelledOut(**each) for each in spelled_out], stdin)
            case {"call": int(number), "tool": str(tool), "arguments": arguments, "line": line}:
                if self._is_within(CALLS, "calls"):
                    # until it is this one's turn nothing more is read, so that few arguments are in memory
                    await self._turns.acquire_on_behalf_of(number)
                    calls.start_soon(self._called, stdin, number, tool, arguments, line)
            case {"find": int(number), "query": str(query)}:
                if self._is_within(FINDS, "searches"):
                    calls.start_soon(self._found, stdin, number, query)
            case {"result": str(result)}:
                self._outcome.result, self._has_ended = result, True
            case _:
                self._end(_named(message["error"]), message["line"])

    async def _check(self, calls: Sequence[SpelledOut], stdin: ByteSendStream) -> None:
        """Let the script begin, or end it before it has called anything."""
        if refusal := await self._reach.refusal(calls):
            self._end(*refusal)
        else:
            await self._send(stdin, {})

    def _is_within(self, most: int, what: str) -> bool:
        """Count a call or a search; the first beyond its limit ends the script."""
        self._asked[what] += 1
        if self._asked[what] > most:
            self._end(f"the script exceeded its limit of {most} {what}")
        return not self._has_ended

    async def _called(
        self, stdin: ByteSendStream, number: int, tool: str, arguments: dict[str, Any], line: int
    ) -> None:
        """Make a call, which has its turn, and answer the process."""
        self._begin()
        try:
            returned = await self._reach.make(tool, arguments)
        finally:
            self._finish()
            self._turns.release_on_behalf_of(number)
        self._outcome.calls.append(replace(returned, value=None))  # a value lives as long as the script wants it
        name = f"{returned.server}:{returned.tool}" if returned.server else returned.tool
        await self._reach.report(len(self._outcome.calls), f"{name}: {returned.outcome}")
        if returned.needs_user:
            self._end(f"{tool} needs the user: {returned.error}. Call it with call_tool, not in a script", line)
            self._scope.cancel()
            return
        answer = {"error": returned.error} if returned.error is not None else {"value": returned.value}
        await self._send(stdin, {"id": number, **answer})

    async def _found(self, stdin: ByteSendStream, number: int, query: str) -> None:
        try:
            answer: dict[str, Any] = {"value": await self._reach.find(query)}
        except SearchFailed as error:
            answer = {"error": str(error)}
        await self._send(stdin, {"id": number, **answer})

    def _begin(self) -> None:
        """Stop the clock while a call is in flight, which has a deadline of its own."""
        if self._in_flight == 0:
            self._left_s = self._scope.deadline - anyio.current_time()
            self._scope.deadline = float("inf")
        self._in_flight += 1

    def _finish(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._scope.deadline = anyio.current_time() + self._left_s

    def _end(self, error: str, line: int | None = None) -> None:
        """Fail, unless the script has ended already.

        Without a `line` of its own, the error has that of the last call or search.
        """
        if not self._has_ended:
            self._outcome.error, self._outcome.line = error, line or self._line
            self._has_ended = True

    async def _send(self, stdin: ByteSendStream, message: Mapping[str, Any]) -> None:
        """Write a line, of one message at a time; a process that has ended reads none."""
        line = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        # asyncio's own errors too, which this stream passes on
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            async with self._sending:
                if not self._has_ended:
                    await stdin.send(line + b"\n")


def _named(error: str) -> str:
    """Return an error of the sandbox; one about a limit names it as it is documented."""
    limit = next((limit for words, limit in _EXCEEDED.items() if error.startswith(words)), None)
    return f"the script exceeded its limit of {limit}" if limit else error


@asynccontextmanager
async def _sandbox() -> AsyncGenerator[Process]:
    """Start the sandbox, which ends with the block, and with it the interpreter that it has started."""
    # nothing of the environment: it has the operator's secrets
    environment = {"MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-I", str(_SANDBOX)]
    process = await anyio.open_process(
        command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/"
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.CancelScope(shield=True):
            await process.aclose()
