"""Callers with tokens, against the query service as the processes that people start."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.http_callers import entry, token_file
from tests.support.processes import Composition, query_service

pytestmark = pytest.mark.process

EMBEDDED = {"REDIS_URL": "", "QDRANT_URL": "", "TOOLSCALE_PORT": "0"}
COMMANDS = {"query": ("-m", "query"), "serve": ("-m", "toolscale", "serve")}
CALL = {"tool_description": "what time is it?"}

each_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@each_command
@pytest.mark.anyio
async def test_with_tokens_it_listens_for_everyone_and_answers_those_who_have_one(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    tokens = token_file(tmp_path / "tokens.toml", ann=entry("good", ["a"]))
    given = {"TOOLSCALE_HOST": "0.0.0.0", "TOOLSCALE_TOKENS_FILE": str(tokens)}
    with query_service(tmp_path, *command, **given) as (running, address):
        url = f"{address}/mcp"
        for mode in ("legacy", "2026-07-28"):
            async with (
                httpx2.AsyncClient(headers={"authorization": "Bearer good"}, trust_env=False) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                assert not (await client.call_tool("find_tool", CALL)).is_error
        refused = httpx2.post(url, json={}, headers={"authorization": "Bearer some-secret"}, trust_env=False)
        assert refused.status_code == 401
        assert httpx2.get(url, timeout=30, trust_env=False).status_code == 405
        assert httpx2.get(f"{address}/ui", trust_env=False).status_code == 401
        assert "seen as" in httpx2.get(f"{address}/ui", auth=("ann", "good"), trust_env=False).text
        assert running.stop() == 0

    lines = [json.loads(line) for line in running.output().splitlines() if line.startswith('{"')]
    assert [line["caller"] for line in lines if line["event"] == "tools_found"] == ["ann", "ann"]
    assert [line["reason"] for line in lines if line["event"] == "authentication_failed"] == ["the token is unknown"]
    assert "secret" not in running.output()


@pytest.mark.slow
@each_command
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"TOOLSCALE_HOST": "0.0.0.0"}, "TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND"),
        ({"TOOLSCALE_TOKENS_FILE": "/nowhere/tokens.toml"}, "/nowhere/tokens.toml"),
        ({"TOOLSCALE_JWT_ISSUER": "https://login.example.org"}, "public_url"),
        ({"TOOLSCALE_PORT": "taken"}, "cannot listen"),
    ],
    ids=["public", "tokens", "jwt", "port"],
)
def test_what_keeps_it_from_listening_is_said_before_a_model_is_loaded(
    tmp_path: Path, command: tuple[str, ...], settings: dict[str, str], named: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = {name: port if value == "taken" else value for name, value in settings.items()}
        # a model that is not there would be warned of
        environment = EMBEDDED | {"TOOLSCALE_EMBEDDING_MODEL": "none/such"} | given
        with Composition("", tmp_path, environment).run("service", *command) as running:
            assert running.process.wait(60) in {1, 2}

    output = running.output()
    assert named in output.replace("\n", " ")
    assert "none/such" not in output
    assert not list(tmp_path.glob("*.sqlite3"))
