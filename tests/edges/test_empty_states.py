"""Where there is nothing yet, or something is refused, the answer names the next command."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from query.listener import open_listener
from shared.errors import IndexHeld
from shared.settings import load_settings
from tests.support.fakes import FakeIndex
from tests.support.pages import get
from tests.support.running_api import running_api
from toolscale.app import app
from toolscale.client.instance import published, try_hold
from toolscale.embedded import serve
from toolscale.embedded.door import Use
from toolscale.embedded.starting import Startup, answering

runner = CliRunner()


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN", "TOOLSCALE_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("toolscale.app._configure_logging", lambda: None)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    with running_api(tmp_path) as url:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        yield url


def everything(*arguments: str) -> str:
    result = runner.invoke(app, arguments)
    return result.output + str(result.exception or "")


@pytest.mark.parametrize("command", ["ls", "ls --failing", "find pay a bill", "resync", "doctor", "toolset list"])
def test_a_command_on_an_empty_catalogue_names_the_next_one(command: str, url: str) -> None:
    told = everything(*command.split())

    wanted = {"toolset list": "`toolscale toolset create"}
    assert wanted.get(command, "`toolscale import`") in told
    assert command in wanted or "`toolscale add`" in told


@pytest.mark.parametrize("document", ['{"mcpServers": {}}', '{"servers": {}}', '{"mcpServers": {}, "inputs": []}'])
def test_a_file_without_servers_is_no_wrong_file(document: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(document)

    told = everything("costs")

    assert "`toolscale add`" in told
    assert "format" not in told


def test_a_file_without_the_key_is_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"theme": "dark"}')

    assert "mcpServers" in everything("costs")


def test_the_import_without_a_client_names_add() -> None:
    assert "`toolscale add`" in everything("import")


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/ui", "/ui/servers"])
async def test_the_page_of_an_empty_catalogue_names_the_commands(path: str) -> None:
    page = await get(FakeIndex(), path)

    assert "toolscale import" in page.text
    assert "toolscale add" in page.text


def test_a_second_service_names_the_first_one_and_the_option() -> None:
    settings = load_settings(port=0)
    address = "http://127.0.0.1:4321"
    held = try_hold(settings.data_dir)
    assert held
    with (
        held,
        published(settings.data_dir, address, environment={}, mcp_config=None, is_background=False),
        pytest.raises(IndexHeld, match=re.escape(address)) as caught,
    ):
        serve.serve(settings)

    assert "--data-dir" in str(caught.value)
    assert str(settings.data_dir) in str(caught.value)


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/", "/ui/servers", "/ui/tools/a:b"])
def test_the_page_of_a_service_that_starts_reloads_itself(path: str, tmp_path: Path) -> None:
    settings, startup = load_settings(port=0), Startup(lambda _: None)
    with (
        closing(open_listener(settings, None)) as listener,
        published(tmp_path, listener.address, environment={}, mcp_config=None, is_background=False) as instance,
        answering(listener, startup, instance, Use()),
    ):
        base = listener.address
        startup.begin("opening the index")
        page = httpx2.get(base + path, trust_env=False)
        api = httpx2.get(base + "/api/servers", trust_env=False)

    assert page.status_code == api.status_code == 503
    assert 'http-equiv="refresh"' in page.text
    assert "opening the index" in page.text
    assert json.loads(api.text)["doing"] == "opening the index"


def test_a_port_in_use_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = everything("serve", "--port", str(taken.getsockname()[1]), "--host", "127.0.0.1")

    assert "port" in told
