"""The program that runs one script: it is started for it, with an empty environment, and ends with it.

It imports nothing of Toolscale, and holds no credentials. Monty, an interpreter in a further process, runs the script;
what the script returns becomes Python values here and not in the service, whose memory a script could else fill.

Both sides exchange lines of JSON. The first line to this program is the script, `{"source", "limits"}`. Each line from
it is one of `{"check": [{"tool", "names", "line"}]}`, which the service answers unless it ends the script,
`{"call", "tool", "arguments", "line"}` and `{"find", "query", "line"}`, which it answers with `{"id", "value"}` or
`{"id", "error"}`, `{"print"}`, and at the end `{"result"}` or `{"error", "line"}`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

import pydantic_monty as monty

# Monty raises a fixed set of exceptions. A script cannot raise this one by accident, and catches it as `ToolError`.
TOOL_ERROR = "binascii.Incomplete"
PRELUDE = "from binascii import Incomplete as ToolError"
CALL, FIND = "call", "find"
SLEEPS = ("system.sleep", "system.async_sleep", "time.sleep", "asyncio.sleep")

Snapshot = monty.FunctionSnapshot | monty.NameLookupSnapshot | monty.FutureSnapshot | monty.MontyComplete


class Failed(Exception):
    """The script ended with an error: the message, and its line where one is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


class Log:
    """Sends what is printed at once, since whatever ends the script may end this program; some characters in all."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def __call__(self, _stream: str, text: str) -> None:
        """Send what fits."""
        if self._left > 0:
            _send({"print": text if len(text) <= self._left else f"{text[: self._left]}… (cut)"})
            self._left -= len(text)


class Run:
    """One script, from its source to its result."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.source: str = request["source"]
        self.limits: Mapping[str, Any] = request["limits"]
        self.log = Log(self.limits["log_characters"])
        self._line: int | None = None  # of the last call, search or sleep
        self._lost: dict[int, int] = {}  # the lines of calls whose results no one has awaited
        self._slept_s = 0.0
        self._answers: dict[int, dict[str, Any]] = {}

    def result(self) -> str:
        """Return the value of the last expression as JSON.

        Raises:
            Failed: the script ended with an error, or exceeded a limit.
        """
        if calls := _spelled_out(self.source):
            _send({"check": calls})
            _receive()
        with monty.Monty(max_processes=1) as pool, pool.checkout(**self._session()) as session:
            session.feed_run(PRELUDE)
            try:
                value = self._driven(session.feed_start(self.source, print_callback=self.log))
            except monty.MontyError as error:
                raise self._failed(error) from error
        return self._json(value)

    def _session(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "limits": {
                "max_memory": limits["memory_bytes"],
                "max_turn_duration_secs": limits["turn_s"],
                "max_feed_duration_secs": limits["waiting_s"],
                "max_suspensions": limits["suspensions"],
            },
            # no clock and no entropy of the host
            "os_policy": {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": 0}},
        }

    def _driven(self, snapshot: Snapshot) -> Any:
        """Return the value of the script, whose calls the service makes."""
        while not isinstance(snapshot, monty.MontyComplete):
            if isinstance(snapshot, monty.NameLookupSnapshot):
                known = {CALL: call, FIND: find}.get(snapshot.variable_name)
                snapshot = snapshot.resume(value=known) if known else snapshot.resume()
            elif isinstance(snapshot, monty.FutureSnapshot):
                pending = snapshot.pending_call_ids
                snapshot = snapshot.resume(self._answered(pending))  # type: ignore[arg-type]  # of JSON
            else:
                self._line = self.source.count("\n", 0, snapshot.position.start) + 1
                snapshot = self._of_host(snapshot) if snapshot.is_os_function else self._asked(snapshot)
        for line in sorted(set(self._lost.values())):
            self.log("stdout", f"line {line}: the result of a call is lost, since nothing awaited it\n")
        return snapshot.output

    def _of_host(self, snapshot: monty.FunctionSnapshot) -> Snapshot:
        """Sleep, or refuse what a script has not: files, a clock, an environment."""
        if snapshot.function_name not in SLEEPS:
            return snapshot.resume_not_handled()
        seconds = max(0.0, float(snapshot.args[0]))
        self._slept_s += seconds
        if self._slept_s > self.limits["waiting_s"]:
            raise Failed("total sleep", self._line)
        time.sleep(seconds)
        return snapshot.resume({"return_value": None})

    def _asked(self, snapshot: monty.FunctionSnapshot) -> Snapshot:
        """Send a call or a search to the service; a search that is not awaited waits here."""
        name, number, line = snapshot.function_name, snapshot.call_id, self._line
        try:
            if name == CALL:
                tool, arguments = call(*snapshot.args, **snapshot.kwargs)
                _send({"call": number, "tool": tool, "arguments": arguments, "line": line}, self.limits["value_bytes"])
            elif name == FIND:
                _send({"find": number, "query": find(*snapshot.args, **snapshot.kwargs), "line": line})
            else:
                return snapshot.resume({"exc_type": "NameError", "message": f"name '{name}' is not defined"})
        except (TypeError, ValueError, RecursionError) as error:
            return snapshot.resume({"exc_type": "TypeError", "message": f"{name}: {error}"})
        if name == CALL or snapshot.allow_eager_await:
            self._lost[number] = line or 1
            return snapshot.resume({"future": ...})
        return snapshot.resume(self._answered([number])[number])  # type: ignore[arg-type]  # as above

    def _answered(self, numbers: list[int]) -> dict[int, dict[str, Any]]:
        """Return the answers to some of these, as soon as there is one."""
        while not any(number in self._answers for number in numbers):
            answer = _receive()
            error = {"exc_type": TOOL_ERROR, "message": answer["error"]} if "error" in answer else None
            self._answers[answer["id"]] = error or {"return_value": answer["value"]}
        answered = {number: self._answers.pop(number) for number in numbers if number in self._answers}
        for number in answered:
            self._lost.pop(number, None)
        return answered

    def _failed(self, error: monty.MontyError) -> Failed:
        """Return the error with its line; one about time has no line of its own, so it has that of the last call."""
        if not isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError):
            return Failed(f"the sandbox ended: {error}", self._line)
        frames = error.traceback()
        message = error.display("type-msg").replace(TOOL_ERROR, "ToolError")
        return Failed(message[: self.limits["error_characters"]], frames[-1].line if frames else self._line)

    def _json(self, value: Any) -> str:
        try:
            text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise Failed(f"the result is no JSON: {error}") from error
        if (size := _bytes(text, limit := self.limits["value_bytes"])) > limit:
            raise Failed(f"the result has {size:,} bytes, and the limit is {limit:,}: return less")
        return text


def call(tool: object, arguments: object = None) -> tuple[str, dict[str, Any]]:
    """Return the arguments of `call` in a script, where it has this name."""
    if not isinstance(tool, str) or not isinstance(arguments, dict | None):
        raise TypeError('expected call("server:tool", {"argument": value})')
    return tool, cast("dict[str, Any]", arguments) or {}


def find(query: object) -> str:
    """Return the argument of `find` in a script, where it has this name."""
    if not isinstance(query, str):
        raise TypeError('expected find("what the tool does")')
    return query


def _spelled_out(source: str) -> list[dict[str, Any]]:
    """Return the calls whose tool and arguments the source has as literals: the tool, their names, and the line."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # Monty says what is wrong with it
    found: list[dict[str, Any]] = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == CALL:
            given = dict(zip(("tool", "arguments"), node.args, strict=False))
            match given | {each.arg: each.value for each in node.keywords if each.arg}:
                case {"tool": ast.Constant(value=str(tool)), "arguments": ast.Dict(keys=keys)}:
                    names = [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
                    found.append({"tool": tool, "names": names, "line": node.lineno})
                case _:
                    pass
    return found


def _bytes(text: str, most: float) -> int:
    """Return the bytes of a text; of one with more characters than that, only these, without a copy of it."""
    return len(text) if len(text) > most else len(text.encode("utf-8", "replace"))


def _plain(value: Any) -> Any:
    """Return a value that JSON has no form for as one that it has."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, monty.MontyClassProxy):
        return value.attributes
    if isinstance(value, bytes):
        raise TypeError("bytes are no JSON")
    return str(value)


def _send(message: Mapping[str, Any], most_bytes: float = float("inf")) -> None:
    line = json.dumps(message, ensure_ascii=False, allow_nan=False)
    if (size := _bytes(line, most_bytes)) > most_bytes:
        raise ValueError(f"the arguments have {size:,} bytes, and the limit is {most_bytes:,}: send less")
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def _receive() -> Any:
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit  # the service has ended the script
    return json.loads(line)


def _bound(limits: Mapping[str, Any]) -> None:
    """Bound this process and the interpreter that it starts, beside the limits that Monty itself keeps."""
    for kind, most in (
        (resource.RLIMIT_DATA, limits["process_bytes"]),
        (resource.RLIMIT_CPU, limits["process_s"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # not on each system
            resource.setrlimit(kind, (most, most))


def main() -> None:
    """Run the script of the first line, and write its outcome."""
    request = json.loads(sys.stdin.buffer.readline())
    _bound(request["limits"])
    run = Run(request)
    try:
        outcome: dict[str, Any] = {"result": run.result()}
    except Failed as failed:
        outcome = {"error": str(failed), "line": failed.line}
    except MemoryError:
        outcome = {"error": "no memory is left", "line": None}
    _send(outcome)


if __name__ == "__main__":
    main()
