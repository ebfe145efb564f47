"""The service of a data directory: its lock and file, its door, and the answers before it is there."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp import Client, MCPError
from mcp.server import Server
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from query.auth.authentication import Authentication
from query.caller import Caller
from query.digest import BEING_LISTED
from query.early import early_service
from query.endpoint import Endpoint
from query.listener import HttpListener, open_listener
from query.mcp import caller_or_anyone, introduced
from query.mcp import service_of as mcp_service_of
from query.tools.registry import BUILTIN_TOOLS
from shared.errors import ConfigInvalid, IndexHeld, ServiceUnreachable
from shared.settings import Settings, load_settings
from tests.support.calling import catalogue_of, upstreams_to
from tests.support.http_callers import static
from tests.support.policies import policy
from tests.support.waiting import eventually
from toolscale.client.background import Background, Place, place_of, place_of_command, service_url
from toolscale.client.instance import ATTEND_PATH, FILE, LOG, STOP_PATH, Instance, published, try_hold
from toolscale.embedded import serve
from toolscale.embedded.door import Door, Use, use_routes
from toolscale.embedded.starting import Startup, answering
from toolscale.stdio import READING


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in ("QDRANT_URL", "REDIS_URL"):
        monkeypatch.setenv(name, "")
    return load_settings(data_dir=tmp_path, host="127.0.0.1", port=0)


def instance_of(address: str = "http://127.0.0.1:1") -> Instance:
    return Instance(address, "instance", "s3cret")


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_early_service_introduces_itself_as_the_service_does(mode: str) -> None:
    async def introduction(server: Server[Any]) -> tuple[object, ...]:
        async with Client(server, mode=mode) as client:
            return client.server_info, client.server_capabilities, client.instructions, client.protocol_version

    early = await introduction(early_service([]))
    running = await introduction(mcp_service_of(catalogue_of([]), upstreams_to({})))

    assert early == (*running[:2], introduced(BEING_LISTED), running[3])


@pytest.mark.anyio
async def test_the_early_list_has_no_scripts_where_the_policy_denies_them() -> None:
    denying = policy('[[scripts]]\naction = "deny"\n')

    async with Client(early_service([], lambda: denying)) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}

    assert {"find_tool", "call_tool"} <= listed
    assert "run_script" not in listed


def test_the_proxy_repeats_the_calls_of_all_tools_that_only_read() -> None:
    hints = {handler.tool.name: handler.tool.annotations for handler in BUILTIN_TOOLS}

    assert {name for name, annotations in hints.items() if annotations and annotations.read_only_hint} == READING


def test_a_data_directory_has_one_holder_at_a_time(settings: Settings) -> None:
    held = try_hold(settings.data_dir)
    assert held
    with held:
        with pytest.raises(IndexHeld, match=re.escape(f"another Toolscale process uses {settings.data_dir}")):
            serve.serve(settings)
        assert try_hold(settings.data_dir) is None

    again = try_hold(settings.data_dir)
    assert again
    again.close()


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ([], {}),
        (["--config", "~/mcp.json", "--data-dir", "elsewhere"], {}),
        (["-c", "a.json", "--port", "1"], {"QDRANT_URL": "http://127.0.0.1:6333"}),
        (["--config=a.json"], {"TOOLSCALE_DATA_DIR": "~/data", "TOOLSCALE_QDRANT_URL": "http://[::1]:6333"}),
        ([], {"TOOLSCALE_MCP_CONFIG": "/x/mcp.json", "REDIS_URL": "redis://127.0.0.1", "TOOLSCALE_HOST": "::1"}),
    ],
)
def test_the_place_of_a_command_is_that_of_its_settings(
    arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QDRANT_URL", "REDIS_URL", *(name for name in os.environ if name.startswith("TOOLSCALE_"))):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = dict(zip(arguments[::2], arguments[1::2], strict=False)) | (
        {"--config": "a.json"} if "--config=a.json" in arguments else {}
    )
    settings = load_settings(
        mcp_config=given.get("--config") or given.get("-c"), data_dir=given.get("--data-dir"), port=given.get("--port")
    )

    assert place_of_command(["--stdio", *arguments]) == place_of(settings)
    assert place_of_command(["--stdio", "--help"]) is None


def test_the_file_of_a_service_has_its_secret_for_its_owner_and_no_value_of_a_variable(settings: Settings) -> None:
    path = settings.data_dir / FILE
    with published(settings.data_dir, "http://0.0.0.0:1", environment={"KEY": "a-secret-value"}) as own:
        text, mode = path.read_text(), path.stat().st_mode & 0o777

    assert mode == 0o600 or sys.platform == "win32"
    assert own.secret in text
    assert own.secret not in repr(own)
    assert "a-secret-value" not in text
    assert own.url == "http://127.0.0.1:1"
    assert not path.exists()


def test_until_the_service_is_there_its_port_answers_503_with_the_present_step(settings: Settings) -> None:
    shown: list[str] = []
    startup = Startup(shown.append)
    with closing(open_listener(settings)) as listener:
        with published(settings.data_dir, listener.address) as own, answering(listener, startup, own, Use()):
            startup.begin("opening the index")
            with pytest.raises(ServiceUnreachable, match=r"is starting \(opening the index\); try again"):
                service_url(settings)
            found = Background(place_of(settings)).reach()
            get = {path: httpx2.get(listener.address + path, trust_env=False) for path in ("/healthz", "/readyz")}
            post = httpx2.post(f"{listener.address}/mcp", json={}, trust_env=False)
        with socket.create_connection(listener.server_socket.getsockname(), timeout=5):
            pass  # the next server accepts it

    alive = {"status": "alive", "instance_id": own.instance_id, "starting": "opening the index"}
    assert found == (own, "opening the index")
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
    with (
        closing(open_listener(settings)) as listener,
        answering(listener, Startup(lambda _: None), instance_of(), Use()),
    ):
        async with Client(f"{listener.address}/mcp", mode=mode) as client:
            listed = await client.list_tools()
            name = client.server_info and client.server_info.name
            with pytest.raises(MCPError):
                await client.call_tool("find_tool", {"tool_description": "time"})

    assert name == "toolscale"
    assert {tool.name for tool in listed.tools} >= READING


@pytest.mark.parametrize("has_tokens", [True, False])
def test_before_the_service_is_there_the_operator_gets_the_list_unless_it_has_a_toolset(
    settings: Settings, has_tokens: bool
) -> None:
    tools = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    startup, instance = Startup(lambda _: None), instance_of()
    accept = {"Accept": "application/json, text/event-stream"}
    authentication = Authentication() if has_tokens else None
    with closing(open_listener(settings, authentication)) as listener, answering(listener, startup, instance, Use()):

        def status(**headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()} | accept
            return httpx2.post(f"{listener.address}/mcp", json=tools, headers=given, trust_env=False).status_code

        anyone, known = status(), status(**instance.authorization)
        in_toolset = status(**instance.authorization, Toolscale_Toolset="dev")
        wrong = status(Authorization="Bearer wrong")

    assert [anyone, wrong] == ([503, 503] if has_tokens else [200, 200])
    assert [known, in_toolset] == [200, 503]
    callers = [caller_or_anyone(context).name for context, _ in startup.lists]
    assert callers == (["operator"] if has_tokens else ["anyone", "operator", "anyone"])


def test_the_secret_makes_the_operator_with_its_groups_and_toolset_and_nothing_else_does(tmp_path: Path) -> None:
    async def whose(_: Request, caller: Caller) -> JSONResponse:
        groups = None if caller.groups is None else sorted(caller.groups)
        return JSONResponse([caller.name, groups, caller.toolset, caller.client, caller.directory])

    def app_with(authentication: Authentication | None) -> ASGIApp:
        with closing(HttpListener(socket.socket(), authentication)) as listener:
            return Starlette(routes=[Route("/whose", Endpoint(listener, whose, any_host=True))])

    def asked(app: ASGIApp, **headers: str) -> tuple[int, Any]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        response = TestClient(Door(app, "s3cret", Use())).get("/whose", headers=given)
        return response.status_code, response.json()

    limits = {"toolscale_groups": "dev,%C3%A9", "toolscale_toolset": "small"}
    limits |= {"toolscale_session": "one", "toolscale_directory": "/home/ann/%C3%A9"}
    secret = {"authorization": "Bearer s3cret"}
    open_app, with_tokens = app_with(None), app_with(static(tmp_path / "tokens.toml"))
    for app in (open_app, with_tokens):
        assert asked(app, **secret) == (200, ["operator", None, None, "", None])
        assert asked(app, **secret, **limits) == (200, ["operator", ["dev", "é"], "small", "one", "/home/ann/é"])
        assert asked(app, **secret, toolscale_groups="")[1][1] == []
    assert asked(open_app, authorization="Bearer s3cre", **limits) == (200, ["anyone", None, None, "", None])
    assert asked(with_tokens, authorization="Bearer s3cre", **limits)[0] == 401


def test_a_service_is_used_by_requests_and_clients_and_not_by_programs_that_watch_it() -> None:
    now_s = 100.0
    use = Use(lambda: now_s)
    seen: list[float] = []

    async def page(_: Request) -> JSONResponse:
        seen.append(use.idle_s)
        return JSONResponse({})

    client = TestClient(Door(Starlette(routes=[Route("/healthz", page), Route("/ui", page)]), "s3cret", use))
    now_s = 400.0
    client.get("/healthz")
    client.get("/ui")
    now_s = 500.0

    assert seen == [300.0, 0.0]
    assert use.idle_s == 100.0
    with use.client():
        assert use.idle_s == 0.0


def test_only_the_operator_ends_a_background_service_and_only_while_no_call_needs_it() -> None:
    use, ended = Use(), list[str]()

    def status(path: str, token: str = "", *, is_background: bool = True) -> int:
        end = (lambda: ended.append(path)) if is_background else None
        app = Starlette(routes=use_routes(use, lambda: True, end))
        return TestClient(Door(app, "s3cret", use)).post(path, headers={"Authorization": f"Bearer {token}"}).status_code

    assert status(STOP_PATH) == 404
    assert status(STOP_PATH, "s3cret", is_background=False) == 409
    with use.request():
        assert status(STOP_PATH, "s3cret") == 409
    with use.client():
        assert status(f"{STOP_PATH}?alone", "s3cret") == 409
        assert ended == []
        assert status(STOP_PATH, "s3cret") == 202
    assert status(f"{STOP_PATH}?alone", "s3cret") == 202
    assert ended == [STOP_PATH, f"{STOP_PATH}?alone"]
    assert status(ATTEND_PATH) == 404
    assert status(ATTEND_PATH, "s3cret") == 204  # since the service ends


def test_a_service_in_a_terminal_is_used_in_any_environment_and_with_its_own_mcp_json_alone(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    monkeypatch.setenv("TOOLSCALE_CALL_TIMEOUT_S", "7")
    with (
        closing(open_listener(settings)) as listener,
        published(settings.data_dir, listener.address, environment={}, mcp_config=own) as instance,
        answering(listener, Startup(lambda _: None), instance, Use()),
    ):
        found, _ = Background(Place(tmp_path)).reach()
        with pytest.raises(ConfigInvalid, match=re.escape(f"follows {own}, not {other}")):
            Background(Place(tmp_path, other)).reach()

    assert found == instance


def starters() -> list[psutil.Process]:
    """Return the services that this process starts."""
    children = psutil.Process().children()
    return [each for each in children if each.status() != psutil.STATUS_ZOMBIE and "--background" in each.cmdline()]


def test_a_client_waits_for_the_process_with_the_lock_which_does_not_answer_yet(settings: Settings) -> None:
    found: list[Instance] = []
    background, held = Background(place_of(settings)), try_hold(settings.data_dir)
    assert held
    with held, closing(open_listener(settings)) as listener:
        waiting = threading.Thread(target=lambda: found.append(background.reach()[0]))
        waiting.start()
        eventually((settings.data_dir / LOG).exists, what="an attempt to start a service")
        with (
            published(settings.data_dir, listener.address) as own,
            answering(listener, Startup(lambda _: None), own, Use()),
        ):
            waiting.join(60)
        eventually(lambda: not starters(), what="the end of the attempts, which do not get the lock")
        background.leave_running()

    assert found == [own]


def test_with_a_server_for_qdrant_or_redis_nothing_starts_by_itself(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match="no service of"):
        Background(Place(tmp_path, has_servers=True)).reach()

    assert list(tmp_path.iterdir()) == []
    assert Background(Place(tmp_path, own_url="http://127.0.0.1:8765", has_servers=True)).reach()[0].instance_id == ""


def test_a_file_of_an_earlier_version_names_a_service_without_a_secret(settings: Settings) -> None:
    with closing(open_listener(settings)) as listener, published(settings.data_dir, listener.address) as own:
        path = settings.data_dir / FILE
        path.write_text(json.dumps({"url": own.url, "instance_id": own.instance_id}))
        with answering(listener, Startup(lambda _: None), own, Use()):
            found, _ = Background(place_of(settings)).reach()

    assert (found.secret, found.authorization) == ("", {})
