"""Targets that start a server as a child, and servers as separate processes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from shared.upstream.target import HttpTarget, StdioTarget, Target
from tests.support.warm import start

_HERE = Path(__file__).resolve().parent


def scripted_stdio(mode: str, **env: str) -> StdioTarget:
    """Return a target that starts the scripted server in this mode."""
    return StdioTarget(sys.executable, (str(_HERE / "stdio_server.py"), mode), env)


def installed_stdio(cache: Path, *seconds: str) -> StdioTarget:
    """Return a target whose command installs the good server in `cache`, by way of a shell as `npx` does."""
    command = (sys.executable, str(_HERE / "installer.py"), str(cache), *seconds)
    return StdioTarget("sh", ("-c", '"$@"; exit $?', "sh", *command))


def good_stdio() -> StdioTarget:
    """Return a target that starts the good server."""
    return StdioTarget(sys.executable, (str(_HERE / "good_server.py"), "stdio"))


def callable_stdio(*wrapper: str) -> StdioTarget:
    """Return a target that starts the server whose tools can be called, by way of `wrapper`."""
    command = (*wrapper, sys.executable, str(_HERE / "callable_server.py"), "stdio")
    return StdioTarget(command[0], command[1:])


@contextmanager
def callable_target(kind: str) -> Generator[Target]:
    """Yield a target of the server whose tools can be called: `stdio`, or a kind of `good_http`."""
    if kind == "stdio":
        yield callable_stdio()
        return
    with good_http(kind, program="callable") as target:
        yield target


@contextmanager
def good_http(kind: str, port: int = 0, program: str = "good") -> Generator[HttpTarget]:
    """Run a good server (`http`, `legacy`, `sse`) at this port or a free one; connections wait until it has started."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        command = [sys.executable, str(_HERE / f"{program}_server.py"), kind, str(listener.fileno())]
        process = start(command, pass_fds=[listener.fileno()])
        target = http_target(kind, listener.getsockname()[1])
    try:  # only the child keeps the socket: after its death no process listens
        yield target
    finally:
        process.kill()
        process.wait()


def http_target(kind: str, port: int) -> HttpTarget:
    """Return where a good server of this kind is reached."""
    if kind == "sse":
        return HttpTarget(f"http://127.0.0.1:{port}/sse", "sse")
    return HttpTarget(f"http://127.0.0.1:{port}/mcp")


def library_stdio(name: str) -> StdioTarget:
    """Return a target that starts the server with prompts and resources, under this name."""
    return StdioTarget(sys.executable, (str(_HERE / "library_server.py"), "stdio"), {"LIBRARY": name})
