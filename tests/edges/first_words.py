"""A stdio server that does as told until `initialize`, run as a program: `python first_words.py BEHAVIOUR FILE`.

Each start adds a line to the file. Behaviours before `initialize`, in a start in which it is not the first message:
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.hostile.messages import answer, one_page, tool

Message = dict[str, Any]


def write(message: Any) -> None:
    sys.stdout.write((message if isinstance(message, str) else json.dumps({"jsonrpc": "2.0", **message})) + "\n")
    sys.stdout.flush()


def fail(message: Message, request_id: object = "its own", then: Callable[[], object] = lambda: None) -> None:
    write({"id": message["id"] if request_id == "its own" else request_id, "error": {"code": -32000, "message": "no"}})
    then()


def write_and_exit(message: Any) -> None:
    write(message)
    sys.exit(1)


def exit_later() -> None:
    time.sleep(1)
    sys.exit(2)


def close_stdout() -> None:
    os.close(1)
    threading.Event().wait()


def forever(_: object = None) -> None:
    threading.Event().wait()


BEHAVIOURS: dict[str, Callable[[Message], object]] = {
    "exits 0": lambda _: sys.exit(0),
    "exits 1": lambda _: sys.exit(1),
    "is killed": lambda _: os.kill(os.getpid(), 9),
    "aborts": lambda _: os.abort(),
    "exits a second later": lambda _: exit_later(),
    "an error, then the end": lambda message: fail(message, then=lambda: sys.exit(0)),
    "an error without id, then the end": lambda message: fail(message, None, lambda: sys.exit(0)),
    "an error without id": lambda message: fail(message, None),
    "an error with another id": lambda message: fail(message, "another"),
    "a result with another id": lambda _: write({"id": 4711, "result": {}}),
    "a result that is none": lambda message: write({"id": message["id"], "result": {"supportedVersions": "all"}}),
    "its closed stdout": lambda _: close_stdout(),
    "a line, then nothing": lambda _: write("Error: expected initialize"),
    "a line, then the end": lambda _: write_and_exit("Error: expected initialize"),
    "a notification, then the end": lambda _: write_and_exit({"method": "notifications/message", "params": {}}),
    "nothing": lambda _: None,
    "no word ever": forever,
}


def main(behaviour: str, file: str) -> None:
    with Path(file).open("a", encoding="utf-8") as starts:
        starts.write(f"{os.getpid()}\n")
    is_initialized = False
    for line in sys.stdin:
        message: Message = json.loads(line)
        is_initialized |= message.get("method") == "initialize"
        if not is_initialized:
            BEHAVIOURS[behaviour](message)
        elif (reply := answer(message, one_page(tool("one")))) is not None:
            write(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
