"""A run wipes only its own data on a Qdrant server. The server is scripted: the test compares its requests."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.chaos.harness import Chaos
from tests.chaos.plan import SHORT
from tests.support.http_thread import SilentHandler, served
from tests.support.qdrant_server import emptied_qdrant


@dataclass
class Holding:
    """The collections of a server, and the keys it was shown."""

    collections: set[str] = field(default_factory=set[str])
    keys: set[str | None] = field(default_factory=set[str | None])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[Holding]:
    """A server at QDRANT_URL that asks for a key."""
    holding = Holding()

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            self._answer({"collections": [{"name": name} for name in sorted(holding.collections)]})

        def do_DELETE(self) -> None:
            holding.collections.remove(self.path.removeprefix("/collections/"))
            self._answer(True)

        def _answer(self, result: object) -> None:
            holding.keys.add(self.headers["api-key"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"result": result}).encode())

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as http:
        monkeypatch.setenv("QDRANT_URL", f"http://127.0.0.1:{http.server_port}")
        monkeypatch.setenv("QDRANT_API_KEY", "the-key")
        yield holding


def test_chaos_refuses_a_server_that_holds_collections_and_leaves_them(server: Holding, tmp_path: Path) -> None:
    server.collections = {"somebodys"}

    with ExitStack() as opened, pytest.raises(RuntimeError, match="somebodys"):
        Chaos(SHORT, 1, tmp_path / "run", opened, None)

    assert server.collections == {"somebodys"}


def test_what_a_run_wrote_is_gone_at_its_end_also_when_it_failed(server: Holding) -> None:
    def run() -> None:
        with emptied_qdrant():
            server.collections = {"tools", "servers"}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run()

    assert server.collections == set()
    assert server.keys == {"the-key"}
