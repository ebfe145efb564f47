"""A server of which only one can run, and which says so as it ends: `single_server.py DIRECTORY KIND [PORT]`.

It counts its starts in `starts`, and with `refused` the second ones. Its tool `grow` adds a tool to its list.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from lines import send, serve  # type: ignore[import-not-found]  # beside this program, which runs alone

DIRECTORY, KIND = Path(sys.argv[1]), sys.argv[2]
tools = ["echo", "grow"]


def count(name: str) -> None:
    with (DIRECTORY / name).open("a") as file:
        file.write(f"{os.getpid()}\n")


def refuse(reason: str) -> None:
    count("refused")
    sys.exit(f"another one runs: {reason}")


count("starts")
held: Any = None
if KIND in ("lock", "slow-end"):
    held = (DIRECTORY / "lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        refuse("the profile is locked")
elif KIND == "port":
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("127.0.0.1", int(sys.argv[3])))
        held.listen()
    except OSError:
        refuse("the port is in use")
elif KIND == "database":
    held = sqlite3.connect(DIRECTORY / "data.db", timeout=0, isolation_level=None)
    try:
        held.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        refuse("the database is locked")
elif KIND == "pid-file":
    file = DIRECTORY / "pid"
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        refuse("its file of the process id exists")


def call(name: str, _: dict[str, Any]) -> str:
    if name == "grow":
        tools.append(f"extra{len(tools)}")
        send(method="notifications/tools/list_changed")
    return "done"


serve(call, lambda: tools)
if KIND == "slow-end":
    time.sleep(0.7)
if KIND == "pid-file":
    (DIRECTORY / "pid").unlink()
