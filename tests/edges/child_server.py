"""A server that starts other processes and ends in one of several ways: `child_server.py DIRECTORY KIND`.

Each process leaves a file with its id as the name in the directory, and `closed` is written by an orderly end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lines import serve  # type: ignore[import-not-found]  # beside this program, which runs alone

DIRECTORY, KIND = Path(sys.argv[1]), sys.argv[2]
STUBBORN = """
import os, pathlib, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(600)
"""
DETACHED = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], start_new_session=True)
"""


def start(*, detached: bool = False, **options: Any) -> None:
    """Start a process that ignores signals, and wait until it runs."""
    before = set(DIRECTORY.iterdir())
    program = ["-c", DETACHED, STUBBORN] if detached else ["-c", STUBBORN]
    devices: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen([sys.executable, *program, str(DIRECTORY)], **{**devices, **options})
    while set(DIRECTORY.iterdir()) == before:
        time.sleep(0.01)


Path(DIRECTORY, str(os.getpid())).touch()
if KIND == "same-group":
    start()
elif KIND == "own-session":
    start(start_new_session=True)
elif KIND == "holds-pipes":
    start(stdin=None, stdout=None, stderr=None, start_new_session=True)
elif KIND == "detached":  # its parent has ended, and it has a session of its own
    start(detached=True)
elif KIND == "no-environment":
    start(env={}, start_new_session=True)
elif KIND == "ignores-signals":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start()


def call(_: str, arguments: dict[str, object]) -> str:
    """Start a process, as a server does that opens a browser at the first call; or crash."""
    if arguments.get("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
    start(start_new_session=True)
    return "started"


serve(call)
if KIND in ("ignores-input", "ignores-signals"):
    time.sleep(600)
if KIND == "ignores-input-closes-at-sigterm":

    def close(*_: object) -> None:
        time.sleep(2)
        Path(DIRECTORY, "closed").touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, close)
    time.sleep(600)
if KIND.startswith("closes-in-"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(float(KIND.rpartition("-")[2]))
    Path(DIRECTORY, "closed").touch()
