"""Targets that start a server as a child, and servers as processes of their own."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from shared.upstream.dial import HttpTarget, StdioTarget

_HERE = Path(__file__).resolve().parent


def scripted_stdio(mode: str, **env: str) -> StdioTarget:
    """Return a target that starts the scripted server in this mode."""
    return StdioTarget(sys.executable, (str(_HERE / "stdio_server.py"), mode), env)


def good_stdio() -> StdioTarget:
    """Return a target that starts the good server."""
    return StdioTarget(sys.executable, (str(_HERE / "good_server.py"), "stdio"))


@contextmanager
def good_http(kind: Literal["http", "legacy", "sse"]) -> Generator[HttpTarget]:
    """Run the good server on loopback; connections wait until it has started."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, str(_HERE / "good_server.py"), kind, str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()]) as process:
            try:
                yield _target(kind, listener.getsockname()[1])
            finally:
                process.kill()


def _target(kind: str, port: int) -> HttpTarget:
    if kind == "sse":
        return HttpTarget(f"http://127.0.0.1:{port}/sse", "sse")
    return HttpTarget(f"http://127.0.0.1:{port}/mcp")
