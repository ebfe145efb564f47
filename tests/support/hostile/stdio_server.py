"""A scripted stdio server, run as a program: `python stdio_server.py MODE`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.support.hostile.messages import (
    MIXED_TOOLS,
    Message,
    answer,
    as_dense_as_allowed,
    circular,
    crowded,
    endless,
    failure,
    initialized,
    one_page,
    result,
    too_dense,
    too_dense_tools,
    tool,
    unparsable_page,
)

Answer = Callable[[Message], None]


def write(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def plays(pages: Callable[[str | None], Message]) -> Answer:
    def respond(request: Message) -> None:
        if (reply := answer(request, pages)) is not None:
            write(reply)

    return respond


def unparsable(request: Message) -> None:
    sys.stdout.buffer.write(unparsable_page(request) + b"\n")
    sys.stdout.buffer.flush()


GOOD = plays(one_page(tool("one")))


def on_tools_list(act: Answer) -> Answer:
    return lambda request: act(request) if request.get("method") == "tools/list" else GOOD(request)


def on_tools_call(act: Answer) -> Answer:
    return lambda request: act(request) if request.get("method") == "tools/call" else GOOD(request)


def silent(_request: Message) -> None:
    """Say nothing at all."""


def silent_on_unknown(request: Message) -> None:
    """Ignore methods of a later era, as some old servers do."""
    if request.get("method") in ("initialize", "tools/list"):
        GOOD(request)


def drips(_request: Message) -> None:
    while True:
        sys.stdout.write(" ")
        sys.stdout.flush()
        time.sleep(0.1)


def huge(_request: Message) -> None:
    sys.stdout.write('{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"huge","description":"')
    for _ in range(256):
        sys.stdout.write("a" * (1 << 20))
    sys.stdout.write('"}]}}\n')


def chatters(_request: Message) -> None:
    while True:
        write({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})


def babbles(_request: Message) -> None:
    sys.stdout.write("{this is not JSON\n")
    sys.stdout.flush()


def wrong_id(_request: Message) -> None:
    write(result({"id": 4711}, {"tools": []}))


def unknown_version(request: Message) -> None:
    if request.get("method") == "initialize":
        write(initialized(request, "1999-01-01"))
    else:
        GOOD(request)


def fails(request: Message) -> None:
    write(failure(request, -32603, "database password hunter2-hunter2 rejected"))


def dies(_request: Message) -> None:
    sys.stderr.write("panic: out of cheese\n")
    sys.exit(3)


def shows_environment(request: Message) -> None:
    write(result(request, {"tools": [tool("environment", json.dumps(dict(os.environ)))]}))


def has_child(request: Message) -> None:
    """Start a process that would outlive this one, and name it in a tool."""
    child = subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL)
    write(result(request, {"tools": [tool(f"child_{child.pid}")]}))


MODES: dict[str, Answer] = {
    "good": GOOD,
    "banner": GOOD,
    "mixed": plays(one_page(*MIXED_TOOLS)),
    "unparsable": on_tools_list(unparsable),
    "circular": plays(circular),
    "endless": plays(endless),
    "crowded": plays(crowded),
    "silent": silent,
    "stubborn": silent,
    "silent_on_unknown": silent_on_unknown,
    "drips": on_tools_list(drips),
    "huge": on_tools_list(huge),
    "too_dense": plays(too_dense),
    "as_dense_as_allowed": plays(as_dense_as_allowed),
    "too_dense_tools": plays(too_dense_tools),
    "chatters": on_tools_list(chatters),
    "babbles": babbles,
    "wrong_id": wrong_id,
    "unknown_version": unknown_version,
    "fails": on_tools_list(fails),
    "dies_at_start": dies,
    "dies_in_mid_list": on_tools_list(dies),
    "dies_in_mid_call": on_tools_call(dies),
    "huge_result": on_tools_call(huge),
    "fails_to_call": on_tools_call(fails),
    "environment": on_tools_list(shows_environment),
    "has_child": on_tools_list(has_child),
}


def main(mode: str) -> None:
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "dies_at_start":
        dies({})
    if mode == "banner":
        sys.stdout.write("Welcome! Server running on stdio.\n")
    for line in sys.stdin:
        MODES[mode](json.loads(line))
    if mode == "stubborn":
        time.sleep(300)


if __name__ == "__main__":
    main(sys.argv[1])
