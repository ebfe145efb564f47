"""An HTTP server that opens files until the process may open no more: `/eat` and `/free`."""

from __future__ import annotations

import os
import resource
import socket

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from shared.service.http import HttpConfig, HttpLimits, bind
from shared.service.logging import configure_logging
from shared.service.routes import liveness_route

FILES = 64


def main() -> None:
    """Log the port and serve until a signal."""
    configure_logging("INFO")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    listener = bind("127.0.0.1", 0, "of the test")
    structlog.get_logger().info("listens", port=listener.getsockname()[1])
    # the limit on connections would hold first
    uvicorn.Server(HttpConfig(_app(listener), HttpLimits(connections=2 * FILES))).run(sockets=[listener])


def _app(listener: socket.socket) -> Starlette:
    eaten: list[int] = []

    async def eat(_: Request) -> PlainTextResponse:
        try:
            while True:
                eaten.append(os.dup(listener.fileno()))
        except OSError as error:
            return PlainTextResponse(str(error))

    async def free(_: Request) -> PlainTextResponse:
        while eaten:
            os.close(eaten.pop())
        return PlainTextResponse("free")

    return Starlette(routes=[liveness_route(), Route("/eat", eat), Route("/free", free)])


if __name__ == "__main__":
    main()
