"""The parts of `toolscale serve` that answer before its service, and share it between processes."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.server import Server
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from query.auth.authentication import Authentication
from query.listener import open_listener
from query.server.early import early_service
from query.server.mcp import service_of
from query.tools.registry import read_only_tools
from shared.errors import IndexHeld, ServiceUnreachable
from shared.settings import Settings, load_settings
from tests.support.calling import catalogue_of, upstreams_to
from toolscale.client.instance import published, service_url
from toolscale.embedded.holder import SOCKET, connect, hold, listening, try_hold
from toolscale.embedded.open_requests import OpenRequests, error_answer
from toolscale.embedded.starting import Startup, answering


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["short", "long"])
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Settings:
    """Return settings of a data directory with a short path, or one above the limit of a socket's address."""
    monkeypatch.setenv("QDRANT_URL", "")
    directory = tmp_path / ("d" * 150) if request.param == "long" else tmp_path
    return load_settings(data_dir=directory, host="127.0.0.1", port=0)


def request(name: str | None = None, method: str = "tools/call", number: int = 1) -> JSONRPCRequest:
    return JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params={"name": name} if name else {})


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_early_service_introduces_itself_as_the_service_does(mode: str) -> None:
    async def introduced(server: Server[Any]) -> tuple[object, ...]:
        async with Client(server, mode=mode) as client:
            return client.server_info, client.server_capabilities, client.instructions, client.protocol_version

    with closing(upstreams_to({})) as upstreams:
        early, running = await introduced(early_service()), await introduced(service_of(catalogue_of([]), upstreams))

    assert early == running


def test_a_data_directory_has_one_holder_at_a_time(settings: Settings) -> None:
    with hold(settings):
        with pytest.raises(IndexHeld, match=f"another Toolscale process uses {settings.data_dir}"):
            hold(settings)
        assert try_hold(settings) is None

    with hold(settings):
        pass


def test_processes_with_a_qdrant_server_do_not_exclude_each_other(settings: Settings) -> None:
    shared = settings.model_copy(update={"qdrant_url": "http://127.0.0.1:6333"})

    with hold(shared), hold(shared), listening(shared) as listener:
        assert listener is None


def test_only_the_owner_of_the_directory_reaches_its_holder_and_a_killed_one_is_replaced(settings: Settings) -> None:
    with hold(settings):
        (settings.data_dir / SOCKET).touch()
        with listening(settings) as listener:
            mode = stat.S_IMODE((settings.data_dir / SOCKET).stat().st_mode)
            connection = connect(settings.data_dir)
            assert listener
            assert connection
            with connection, listener.accept()[0] as accepted:
                connection.sendall(b"hello")
                received = accepted.recv(5)

    assert mode == 0o600
    assert received == b"hello"
    assert connect(settings.data_dir) is None
    assert not (settings.data_dir / SOCKET).exists()


def test_requests_that_only_read_are_repeated_and_a_sent_call_is_not() -> None:
    requests = OpenRequests(read_only_tools())
    names = ["find_tool", "describe_tool", "call_tool", "a_tool_of_a_toolset"]
    for number, name in enumerate(names):
        requests.add(request(name, number=number)).is_sent = True
    requests.add(request(method="resources/read", number=10)).is_sent = True
    waiting = requests.add(request("call_tool", number=11))

    lost = {entry.request.id: entry.is_sent for entry in requests.lost()}

    assert lost == {0: False, 1: False, 2: True, 3: True, 10: False}
    assert [entry.request.id for entry in requests.waiting()] == [0, 1, 10, 11]
    assert requests.is_waiting(waiting)
    assert requests.remove(11) is waiting
    assert not requests.is_waiting(waiting)


@pytest.mark.parametrize("is_modern", [True, False])
def test_a_call_without_a_service_has_an_error_result_and_any_other_request_an_error(is_modern: bool) -> None:
    result = error_answer(request("find_tool"), "no service", is_modern=is_modern)
    error = error_answer(request(method="resources/read"), "no service", is_modern=is_modern)

    assert isinstance(result, JSONRPCResponse)
    assert (result.result["isError"], result.result["content"]) == (True, [{"type": "text", "text": "no service"}])
    assert ("resultType" in result.result) is is_modern
    assert isinstance(error, JSONRPCError)
    assert error.error.message == "no service"


def test_until_the_service_is_there_its_port_answers_503_with_the_present_step(settings: Settings) -> None:
    shown: list[str] = []
    startup = Startup(shown.append)
    with closing(open_listener(settings)) as listener:
        with published(settings.data_dir, listener.address) as own, answering(listener, startup, own.instance_id):
            startup.begin("opening the index")
            with pytest.raises(ServiceUnreachable, match=r"is starting \(opening the index\); try again"):
                service_url(settings)
            get = {path: httpx2.get(listener.address + path, trust_env=False) for path in ("/healthz", "/readyz")}
            post = httpx2.post(f"{listener.address}/mcp", json={}, trust_env=False)
        with socket.create_connection(listener.server_socket.getsockname(), timeout=5):
            pass  # the next server accepts it

    alive = {"status": "alive", "instance_id": own.instance_id, "starting": "opening the index"}
    assert get["/healthz"].json() == alive
    for response in (get["/readyz"], post):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json() == {"status": "starting", "doing": "opening the index"}
    assert shown == ["opening the index"]


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_until_the_service_is_there_its_port_answers_the_handshake_and_lists_the_built_in_tools(
    settings: Settings, mode: str
) -> None:
    with closing(open_listener(settings)) as listener, answering(listener, Startup(lambda _: None), "instance"):
        async with Client(f"{listener.address}/mcp", mode=mode) as client:
            listed = await client.list_tools()
            name = client.server_info and client.server_info.name
            with pytest.raises(MCPError):
                await client.call_tool("find_tool", {"tool_description": "time"})

    assert name == "toolscale"
    assert {tool.name for tool in listed.tools} >= read_only_tools()


def test_with_authentication_the_port_answers_nothing_before_the_service(settings: Settings) -> None:
    initialize = request(method="initialize").model_dump(by_alias=True)
    startup = Startup(lambda _: None)
    with closing(open_listener(settings, Authentication())) as listener, answering(listener, startup, "instance"):
        response = httpx2.post(f"{listener.address}/mcp", json=initialize, trust_env=False)

    assert response.status_code == 503
