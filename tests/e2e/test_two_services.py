"""Two services on one machine: a command uses the service of its own data directory."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.errors import ConfigInvalid
from shared.settings import load_settings
from tests.e2e.test_serve import serving
from tests.support.hostile.processes import good_stdio
from tests.support.ports import free_port
from tests.support.waiting import eventually
from toolscale.app import app
from toolscale.client.instance import FILE, published
from toolscale.doctor.stores import check_service

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN", "TOOLSCALE_URL"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Serve the catalogue of another data directory at the address of the settings; yield its URL."""
    port = free_port()
    monkeypatch.setenv("TOOLSCALE_PORT", str(port))
    with serving(config(tmp_path / "other", "other"), "--port", str(port)) as (running, url):
        running.wait_for('"event": "server_indexed"')
        yield url.removesuffix("/mcp")


def config(directory: Path, name: str) -> Path:
    """Return an mcp.json of one server in this new directory."""
    directory.mkdir()
    target, path = good_stdio(), directory / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {name: {"command": target.command, "args": list(target.args)}}}))
    return path


def answer(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


@pytest.mark.slow
def test_commands_use_the_service_of_their_data_directory_beside_another_at_the_address_of_the_settings(
    tmp_path: Path, other: str
) -> None:
    own = config(tmp_path / "own", "own")
    here = ("--data-dir", str(own.parent))
    with serving(own) as (running, url):
        running.wait_for('"event": "server_indexed"')
        eventually(lambda: answer("ls", *here)[0]["tools"])
        (listed,) = answer("ls", *here)
        found = answer("find", "the first tool of all", *here)
        answer("toolset", "create", "dev", "own", *here)
        (service,) = check_service(load_settings(data_dir=own.parent))
        kept = answer("toolset", "list", "--url", url)
    stranger = answer("toolset", "list", "--url", other)

    assert (listed["server_id"], listed["tools"]) == ("own", 250)
    assert found["tools"][0]["name"].startswith("own:")
    assert ([toolset["name"] for toolset in kept], stranger) == (["dev"], [])
    assert (service.level, service.found) == ("ok", f"ready at {url.removesuffix('/mcp')}")
    assert not (own.parent / FILE).exists()


def test_an_address_that_another_service_has_taken_is_an_error_that_names_both(tmp_path: Path, other: str) -> None:
    own = tmp_path / "own"
    own.mkdir()
    here = ("--data-dir", str(own))
    with published(own, other) as gone:
        with pytest.raises(ConfigInvalid, match=f"cannot listen on {other.removeprefix('http://')}"):
            answer("toolset", "create", "dev", "own", *here)
        (service,) = check_service(load_settings(data_dir=own))

    answering = json.loads((tmp_path / "other" / FILE).read_text())["instance_id"]
    assert service.level == "problem"
    assert service.found.startswith(f"the service of {own} was instance {gone.instance_id} at {other}, ")
    assert f"instance {answering} answers there now" in service.found
    assert answer("toolset", "list", "--url", other) == []


def test_no_toolset_is_written_to_a_service_of_another_directory(tmp_path: Path, other: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"cannot listen on {other.removeprefix('http://')}"):
        answer("toolset", "create", "dev", "own", "--data-dir", str(tmp_path / "own"))

    assert answer("toolset", "list", "--url", other) == []


def test_the_file_of_a_service_is_readable_only_by_its_owner_and_names_a_reachable_address(tmp_path: Path) -> None:
    with published(tmp_path, "http://0.0.0.0:8765") as first, published(tmp_path, "http://[::]:8765") as second:
        mode = (tmp_path / FILE).stat().st_mode & 0o777

    assert mode == 0o600
    assert (first.url, second.url) == ("http://127.0.0.1:8765", "http://[::1]:8765")
    assert first.instance_id != second.instance_id
    assert not (tmp_path / FILE).exists()
