"""The API of the service: the scope of its caller, the permission to operate, and its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from query.api import MAX_BODY_BYTES
from query.auth.authentication import Authentication
from query.caller import PERMISSIONS
from shared.catalog import Endpoint
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.toolset import Toolset
from tests.support.builders import up
from tests.support.fakes import FakeIndex
from tests.support.http_callers import entry, static
from tests.support.replicated import put_server, tool
from tests.support.running_api import running_api

READS = ["/api/servers", "/api/servers/files", "/api/savings", "/api/advice"]
OPERATES = ["/api/definitions/files", "/api/intents", "/api/dead-letters", "/api/backup/servers"]


@pytest.fixture
def index() -> FakeIndex:
    """Return an index of a server of the group dev, and of one of the group ops."""
    found = FakeIndex()
    put_server(found, "files", [tool("read", tokens=30), tool("write", tokens=10)], "files", frozenset({"dev"}))
    put_server(
        found, "mail", [tool("send")], "mail", frozenset({"ops"}), endpoint=Endpoint(url="http://mail/mcp?key=s3cr3t#x")
    )
    return found


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS_URL", "QDRANT_URL"):
        monkeypatch.setenv(name, "")


@contextmanager
def client(data_dir: Path, index: FakeIndex, authentication: Authentication | None = None) -> Generator[httpx2.Client]:
    with (
        running_api(data_dir, index, authentication) as url,
        httpx2.Client(base_url=url, trust_env=False, timeout=30) as http,
    ):
        yield http


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def ids(answer: Any) -> list[str]:
    return [row["server_id"] for row in answer.json()["servers"]]


def test_a_caller_sees_the_servers_of_its_groups_and_its_toolset(tmp_path: Path, index: FakeIndex) -> None:
    index.put_toolset(Toolset(name="reading", tools=("files:read",)))
    tokens = static(
        tmp_path / "tokens.toml",
        root=entry("root"),
        dev=entry("dev", ["dev"]),
        bound=entry("bound", toolset="reading"),
    )
    with client(tmp_path, index, tokens) as http:
        of_root, of_dev, of_bound = (
            http.get("/api/servers", headers=bearer(name)) for name in ("root", "dev", "bound")
        )
        hidden = http.get("/api/servers/mail", headers=bearer("dev"))
        part = http.get("/api/servers/files", headers=bearer("bound")).json()

    assert (ids(of_root), ids(of_dev), ids(of_bound)) == (["files", "mail"], ["files"], ["files"])
    assert {"left_out", "backlog", "notes"} <= of_root.json().keys()
    assert of_dev.json().keys() == of_bound.json().keys() == {"servers"}
    assert [row["share"] for row in of_dev.json()["servers"]] == [1.0]
    assert (hidden.status_code, hidden.json()["error"]) == (404, "no server 'mail' is known")
    assert ([each["name"] for each in part["tools"]], part["tokens"], part["tools"][0]["share"]) == (["read"], 30, 1.0)
    assert "s3cr3t" not in of_root.text
    assert {row["url"] for row in of_root.json()["servers"]} != {None}
    assert {row["url"] for of in (of_dev, of_bound) for row in of.json()["servers"]} == {None}


def test_an_announced_server_without_a_record_is_seen_by_its_groups(tmp_path: Path, index: FakeIndex) -> None:
    tokens = static(tmp_path / "tokens.toml", dev=entry("dev", ["dev"]), ops=entry("ops", ["ops"]))
    with client(tmp_path, index, tokens) as http:
        intents = open_intents(load_settings(data_dir=tmp_path))
        intents.record(up("new", groups=["dev"]), due_in_s=60)
        intents.close()
        of_dev, of_ops = (http.get("/api/servers", headers=bearer(name)) for name in ("dev", "ops"))

    assert (ids(of_dev), ids(of_ops)) == (["files", "new"], ["mail"])
    assert of_dev.json()["servers"][1]["state"] == "waiting"


@pytest.mark.parametrize("path", OPERATES)
def test_to_operate_a_caller_needs_the_permission_and_every_group(path: str, tmp_path: Path, index: FakeIndex) -> None:
    reading = sorted(PERMISSIONS - {"operate"})
    tokens = static(
        tmp_path / "tokens.toml",
        root=entry("root"),
        reader=entry("reader", permissions=reading),
        dev=entry("dev", ["dev"]),
        bound=entry("bound", toolset="reading"),
    )
    with client(tmp_path, index, tokens) as http:
        intents = open_intents(load_settings(data_dir=tmp_path))
        intents.record(up("files"), due_in_s=60)
        intents.close()
        statuses = {
            name: http.get(path, headers=bearer(name)).status_code for name in ("root", "reader", "dev", "bound", "?")
        }

    assert statuses == {"root": 200, "reader": 403, "dev": 403, "bound": 403, "?": 401}


def test_the_lines_of_a_server_are_for_callers_that_may_operate(tmp_path: Path, index: FakeIndex) -> None:
    tokens = static(tmp_path / "tokens.toml", root=entry("root"), dev=entry("dev", ["dev"]))
    with client(tmp_path, index, tokens) as http:
        shown = {name: http.get("/api/servers/files", headers=bearer(name)).json()["lines"] for name in ("root", "dev")}

    assert shown == {"root": [], "dev": None}


@pytest.mark.parametrize("path", READS)
def test_a_page_of_another_origin_reaches_nothing(path: str, tmp_path: Path, index: FakeIndex) -> None:
    with client(tmp_path, index) as http:
        rebound = http.get(path, headers={"host": "evil.example"})
        crossed = http.get(path, headers={"origin": "https://evil.example"})
        fine = http.get(path)

    assert (rebound.status_code, crossed.status_code, fine.status_code) == (421, 403, 200)
    assert fine.headers["cache-control"] == "no-store"


def test_a_page_of_another_port_of_this_machine_changes_nothing(tmp_path: Path, index: FakeIndex) -> None:
    with client(tmp_path, index) as http:
        own = f"http://{http.base_url.host}:{http.base_url.port}"
        statuses = [
            http.post(
                "/api/intents", content="{}", headers={"origin": origin, "content-type": "text/plain"}
            ).status_code
            for origin in ("http://127.0.0.1:3000", "http://localhost:3000", own)
        ]
        before_a_put = http.request("OPTIONS", "/toolsets/dev", headers={"origin": "http://127.0.0.1:3000"})

    assert statuses == [403, 403, 200]
    assert before_a_put.status_code == 405
    assert "access-control-allow-origin" not in before_a_put.headers


def test_outside_loopback_nobody_operates_without_a_token(
    tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSCALE_HOST", "0.0.0.0")
    monkeypatch.setenv("TOOLSCALE_ALLOW_UNAUTHENTICATED_BIND", "true")
    with client(tmp_path, index) as http:
        local = http.base_url.copy_with(host="127.0.0.1")
        statuses = [httpx2.get(local.join(path), trust_env=False).status_code for path in ("/api/servers", *OPERATES)]

    assert statuses == [200, 403, 403, 403, 403]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/api/savings?period=sometime", None, 400, "period: expected today"),
        ("GET", "/api/advice?budget=0", None, 400, "budget: expected 1 or more"),
        ("GET", "/api/advice?toolset=none", None, 404, "no toolset none"),
        ("GET", "/api/servers/files?lines=0", None, 400, "lines: expected 1 or more"),
        ("GET", "/api/backup/nothing", None, 400, "kind: expected"),
        ("POST", "/api/backup/servers", "[{}]", 400, "version|server_id"),
        ("POST", "/api/intents", "{", 400, "expected JSON"),
        ("POST", "/api/intents", '{"servers": ["filse"]}', 404, "no server 'filse' is known"),
        ("POST", "/api/events", '"not JSON"', 400, "event: not JSON"),
        ("POST", "/api/events", "[1]", 400, "event: "),
    ],
)
def test_an_error_names_the_field_or_the_reason(
    method: str, path: str, body: str | None, status: int, reason: str, tmp_path: Path, index: FakeIndex
) -> None:
    with client(tmp_path, index) as http:
        answer = http.request(method, path, content=body)

    assert answer.status_code == status, answer.text
    assert re.search(reason, answer.json()["error"]), answer.text


def test_an_index_that_is_away_is_a_temporary_error(tmp_path: Path, index: FakeIndex) -> None:
    index.is_down = True
    with client(tmp_path, index) as http:
        answer = http.get("/api/servers")

    assert answer.status_code == 503
    assert json.loads(answer.text)["error"]


def test_texts_that_utf8_cannot_encode_are_sent(tmp_path: Path) -> None:
    index = FakeIndex()
    put_server(index, "odd", [tool("t", "a \ud800 b")], "odd")
    with client(tmp_path, index) as http:
        answer = http.get("/api/servers/odd")

    assert answer.json()["tools"][0]["description"] == "a \ud800 b"


@pytest.mark.parametrize(("method", "path"), [("PUT", "/toolsets/dev"), ("POST", "/api/events")])
def test_every_body_has_the_same_limit_and_the_same_errors(
    method: str, path: str, tmp_path: Path, index: FakeIndex
) -> None:
    with client(tmp_path, index) as http:
        too_large = http.request(method, path, content=b" " * (MAX_BODY_BYTES + 1))
        no_json = http.request(method, path, content=b"{")

    assert (too_large.status_code, too_large.json()) == (413, {"error": f"expected at most {MAX_BODY_BYTES} bytes"})
    assert (no_json.status_code, no_json.json()) == (400, {"error": "expected JSON"})
