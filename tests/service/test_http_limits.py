"""Silent, slow and many connections to a real HTTP server, with limits short enough for a test."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from shared.service import http
from shared.service.http import SMALL_BYTES, HttpLimits
from shared.service.routes import liveness_route
from tests.support.http_limits import (
    FRIEND,
    Address,
    connected,
    drips,
    held_open,
    is_closed,
    limited_server,
    read_status,
    request,
    status_of,
)
from tests.support.processes import Composition
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

MIB: Final = 1 << 20
OUT_OF_FILES: Final = "socket.accept() out of system resource"
IMPATIENT = HttpLimits(connections=20, request_within_s=1.0, body_within_s=1.0)
# No request ends by itself while a test looks at the limits on connections and bodies.
PATIENT = HttpLimits(connections=20, request_within_s=300.0, body_within_s=300.0, bodies_bytes=4 * MIB)


@dataclass
class App:
    """Reads a body and answers, with `?waits` once `go` is set; its answer at `/much` exceeds a client's buffers."""

    go: threading.Event = field(default_factory=threading.Event)
    bodies: list[int] = field(default_factory=list[int])
    ended_streams: int = 0

    async def body(self, request: Request) -> PlainTextResponse:
        size_bytes = len(await request.body())
        self.bodies.append(size_bytes)
        if "waits" in request.query_params:
            await anyio.to_thread.run_sync(self.go.wait)
        return PlainTextResponse(str(size_bytes))

    async def much(self, _: Request) -> StreamingResponse:
        return StreamingResponse(self._chunks())

    async def _chunks(self) -> AsyncGenerator[bytes]:
        try:
            for _ in range(256):
                yield b"x" * MIB
        finally:
            self.ended_streams += 1

    @property
    def asgi(self) -> Starlette:
        routes = [liveness_route(), Route("/body", self.body, methods=["POST"]), Route("/much", self.much)]
        return Starlette(routes=routes)


@pytest.fixture
def app() -> App:
    return App()


@pytest.fixture
def impatient(app: App) -> Generator[Address]:
    with limited_server(app.asgi, IMPATIENT) as address:
        yield address


@pytest.fixture
def patient(app: App) -> Generator[Address]:
    with limited_server(app.asgi, PATIENT) as address:
        yield address
        app.go.set()


def test_a_connection_without_a_request_is_closed(impatient: Address) -> None:
    with closing(connected(impatient)) as silent:
        eventually(lambda: is_closed(silent), what="the end of a silent connection")


def test_a_request_in_flight_outlasts_silent_connections(impatient: Address, app: App) -> None:
    with closing(connected(impatient)) as busy:
        busy.sendall(request("/body?waits", b"whole"))
        eventually(lambda: app.bodies, what="the request")
        with closing(connected(impatient)) as silent:
            eventually(lambda: is_closed(silent), what="the end of a silent connection")

        app.go.set()
        assert read_status(busy) == 200


@pytest.mark.parametrize("requests", [0, 1])
def test_a_head_that_drips_is_cut_off(impatient: Address, requests: int) -> None:
    with closing(connected(impatient)) as slow:
        for _ in range(requests):
            slow.sendall(request())
            assert read_status(slow) == 200
        slow.sendall(b"GET /healthz HTTP/1.1\r\nx-drips: ")

        eventually(lambda: drips(slow), what="the end of a head without an end")


def test_a_body_that_drips_gets_408_and_its_connection_ends(impatient: Address, app: App) -> None:
    with closing(connected(impatient)) as slow:
        slow.sendall(request("/body", b"begun", size=1_000))

        assert read_status(slow) == 408
        eventually(lambda: is_closed(slow), what="the end of the connection")

    assert app.bodies == []


def test_the_rest_of_a_rejected_body_keeps_no_connection_open(impatient: Address) -> None:
    with closing(connected(impatient)) as slow:
        slow.sendall(request("/nowhere", b"begun", size=1_000))
        assert read_status(slow) == 404

        eventually(lambda: drips(slow), what="the end of the connection")


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such limit")
def test_a_response_that_its_client_does_not_read_is_cut_off(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_WITHIN_S", 1.0)
    with limited_server(app.asgi, PATIENT) as address, closing(connected(address)) as deaf:
        deaf.sendall(request("/much"))

        eventually(lambda: app.ended_streams, what="the end of an unread response")


def test_unfinished_requests_keep_no_other_address_out(patient: Address) -> None:
    with held_open(patient, 100, request("/body", b"begun", size=1_000)):
        for _ in range(5):
            assert status_of(patient, request(), FRIEND) == 200


def test_a_request_in_flight_is_answered_while_others_open_connections(patient: Address, app: App) -> None:
    with closing(connected(patient)) as busy:
        busy.sendall(request("/body?waits", b"whole"))
        eventually(lambda: app.bodies, what="the request")
        with held_open(patient, 100):
            assert status_of(patient, request(), FRIEND) == 200
            app.go.set()

            assert read_status(busy) == 200


def test_bodies_have_one_budget_until_their_responses_and_small_ones_pass(patient: Address, app: App) -> None:
    large = request("/body", b"x" * MIB)
    with closing(connected(patient)) as busy:
        busy.sendall(request("/body?waits", b"x" * (4 * MIB)))  # all of the budget
        eventually(lambda: app.bodies, what="the request")

        with closing(connected(patient)) as refused:
            refused.sendall(large)
            head = refused.recv(1 << 16).decode()
            assert head.startswith("HTTP/1.1 503")
            assert "retry-after: 1" in head
            assert status_of(patient, request("/body", b"x" * SMALL_BYTES)) == 200

        app.go.set()
        assert read_status(busy) == 200
        assert status_of(patient, large) == 200


def test_a_process_without_files_rests_and_answers_once_it_has_some(tmp_path: Path) -> None:
    with Composition("", tmp_path, {}).run("hungry", "-m", "tests.support.hungry_server") as running:
        running.wait_for("listens")
        found = re.search(r"port\D+(\d+)", running.output())
        assert found, running.output()
        address = ("127.0.0.1", int(found[1]))
        with closing(connected(address)) as held:
            held.sendall(request("/eat"))
            assert read_status(held) == 200

            began_at_s = time.monotonic()
            with ExitStack() as opened:
                waiting = [opened.enter_context(closing(connected(address))) for _ in range(20)]
                for each in waiting:
                    each.sendall(request())
                running.wait_for(OUT_OF_FILES, times=2)

                held.sendall(request("/free"))
                assert [read_status(each) for each in waiting] == [200] * 20

    # asyncio tries again each second, for one connection or two
    assert running.output().count(OUT_OF_FILES) <= 2 * (time.monotonic() - began_at_s + 1)
