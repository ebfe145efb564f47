"""The door for events beside `/mcp`, on the port of the query service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from query.http import HttpServer

if TYPE_CHECKING:
    from mcp.server import Server
    from starlette.applications import Starlette
    from starlette.routing import Route

    from shared.index.contract import ToolIndex
    from shared.settings import Settings


class ServerWithDoor(HttpServer):
    """The query service with one more route, which only the composition knows."""

    def __init__(self, server: Server[Any], door: Route, *, index: ToolIndex, settings: Settings) -> None:
        """Bind the port as the query service does, and for the same reasons fail to."""
        super().__init__(server, index=index, settings=settings)
        app = cast("Starlette", self._uvicorn.config.app)  # what http_app returned
        app.router.routes.append(door)
