"""A value that cannot be used is named by its setting, key or field, and is in no message, log or traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigInvalid, EventInvalid, ServerAuthRequired
from shared.events import ServerAnnouncement, parse_event
from shared.index.client import connections
from shared.intents.intent import DeadLetter
from shared.settings import Settings, load_settings
from shared.upstream.credentials import CredentialPolicy, Credentials
from shared.upstream.hosts import ResolvedHost
from shared.upstream.http import proxy_for
from shared.upstream.mcp_json import Entry, read_config, read_entry
from shared.upstream.target import HttpTarget
from tests.e2e.test_serve import serving
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.waiting import eventually

CANARY = "cAnArY7c1e55"
PARTS = (
    *(
        "",
        "\n",
        "\r\nX-Other: ",
        "\u00e9",
        "#x",
        "/x",
        "?x",
        " ",
        "\t",
        "\ufeff",
        "\0",
        "\udcff",
        "%zz",
        "[x",
        "]",
        ":x",
    ),
    *("@x", "\u2100", "\u202e", "=1", ",", "\u00a0", "://", "${X}", "\\", '"'),
)
URLS = (
    *("{}", "http://u:{}@127.0.0.1:1/x", "http://{}@127.0.0.1/x", "http://127.0.0.1:{}/", "http://[{}]/x"),
    *("redis://:{}@127.0.0.1:1/7", "redis://{}@127.0.0.1/7", "rediss://127.0.0.1:{}/0", "redis://127.0.0.1/{}"),
    *("redis://127.0.0.1/0?{}=1", "redis://127.0.0.1/0?socket_timeout={}", "unix:///run/x?db={}"),
    *("redis+sentinel://:{}@127.0.0.1:1,b/main/0", "redis+sentinel://127.0.0.1:1,b:{}/main"),
)


def _value(before: str, after: str, form: str) -> str:
    return form.format(before + CANARY + after)


hostile = st.builds(
    _value,
    st.sampled_from(PARTS),
    st.sampled_from(PARTS),
    st.sampled_from(URLS),
)


def assert_hidden(error: Exception, *names: str) -> None:
    """Fail where the canary is in the error or its traceback, or where it has none of the names."""
    assert CANARY not in "".join(traceback.format_exception(error))
    assert any(name.lower() in str(error).lower() for name in names), error


@given(st.sampled_from(sorted(Settings.model_fields)), hostile)
def test_no_setting_shows_its_invalid_value(name: str, value: str) -> None:
    try:
        load_settings(**{name: value})
    except ConfigInvalid as error:
        assert_hidden(error, name)


@pytest.mark.parametrize("name", ["redis_url", "qdrant_url", "qdrant_api_key", "public_url", "jwt_issuer", "data_dir"])
def test_blanks_around_a_setting_are_no_part_of_it(name: str) -> None:
    value = "redis://h:1/0" if name == "redis_url" else "https://h:1"

    assert getattr(load_settings(**{name: f"\n {value}\r\n"}), name) == getattr(load_settings(**{name: value}), name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("redis_url", f"redis://:{CANARY}#x@h/7"),
        ("redis_url", f"redis://:{CANARY}/x@h/7"),
        ("redis_url", f"redis://{CANARY}?x@h/7"),
        ("redis_url", f"redis://:{CANARY}%zz@h/7"),
        ("redis_url", f"redis://:{CANARY}[x@h/7"),
        ("redis_url", f"redis://h/{CANARY}"),
        ("redis_url", f"redis://h?{CANARY}=1"),
        ("redis_url", f"redis+sentinel://:{CANARY}/x@h:1/main"),
        ("redis_url", f'"redis://:{CANARY}@h"'),
        ("qdrant_url", f"https://u:{CANARY}@h"),
        ("qdrant_url", f"https://h?api_key={CANARY}"),
        ("qdrant_url", f"h:6333/{CANARY}"),
        ("qdrant_url", f"https://h:{CANARY}"),
        ("qdrant_url", f"https://h,{CANARY}"),
        ("qdrant_api_key", f"{CANARY}\n{CANARY}"),
        ("events_token", f"{CANARY}\0{CANARY}"),
        ("public_url", f"https://u:{CANARY}@h"),
        ("jwt_issuer", f"https://[{CANARY}]"),
        ("jwt_jwks", f"https://u:{CANARY}@h/keys"),
        ("jwt_jwks", f"https://h:{CANARY}/keys"),
    ],
)
def test_a_url_whose_password_ends_it_early_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        load_settings(**{name: value})

    assert_hidden(refused.value, name)


def beside_url(name: str, value: str) -> dict[str, Any]:
    return {"url": "http://h", name: value}


FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "url": lambda value: {"url": value},
    "httpUrl": lambda value: {"url": f"http://h/{value}"},
    "headers": lambda value: {"url": "http://h", "headers": {"X-Key": value}},
    "Bearer": lambda value: {"url": "http://h", "headers": {"Authorization": f"Bearer {value}"}},
    "name of a header": lambda value: {"url": "http://h", "headers": {f"Authorization: {value}": ""}},
    "env": lambda value: {"command": "x", "env": {"KEY": value}},
    "args": lambda value: {"command": "x", "args": ["--key", value]},
    "oauth": lambda value: {"url": "http://h", "oauth": {"clientId": "c", "clientSecret": value}},
    **{name: partial(beside_url, name) for name in Entry.model_fields if name != "url"},
}


@given(st.sampled_from(sorted(FIELDS)), hostile)
def test_no_entry_shows_its_invalid_value_and_what_is_valid_can_be_sent(name: str, value: str) -> None:
    try:
        _, target, _ = read_entry("the-entry", FIELDS[name](value), {"X": CANARY})
    except ConfigInvalid as error:
        assert_hidden(error, "the-entry: ")
    else:
        if isinstance(target, HttpTarget):
            assert CANARY not in repr(target)
            httpx2.Request("GET", "http://h", headers=dict(target.headers))
            assert not any(sign in value for value in target.headers.values() for sign in "\r\n\0")


@pytest.mark.parametrize(
    "value", [f"{CANARY}\r\nX: 1", f"\u00e9{CANARY}", f"\ufeff{CANARY}", f"{CANARY}\0", f"{CANARY}\ud800"]
)
def test_a_header_that_cannot_be_sent_is_named(value: str) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        read_entry("docs", {"url": "http://h", "headers": {"X-Key": "${KEY}"}}, {"KEY": value})

    assert_hidden(refused.value, "headers")
    assert "docs" in str(refused.value)


@pytest.mark.parametrize("token", ["", "\n", " "])
def test_an_empty_token_is_named(token: str) -> None:
    with pytest.raises(ConfigInvalid, match="Authorization"):
        read_entry("docs", {"url": "http://h", "headers": {"Authorization": "Bearer ${TOKEN}"}}, {"TOKEN": token})


def test_a_token_from_a_file_with_a_line_end_is_sent_without_it() -> None:
    entry = {"url": "http://h", "headers": {"Authorization": "Bearer ${TOKEN}"}}

    _, target, _ = read_entry("docs", entry, {"TOKEN": f"{CANARY}\r\n"})

    assert isinstance(target, HttpTarget)
    assert target.headers == {"Authorization": f"Bearer {CANARY}"}


HOST = ResolvedHost("h", (), "https", 443)


@pytest.mark.parametrize("content", [f"{CANARY}\n", f"{CANARY}\r\n", f" {CANARY} ", f"\ufeff{CANARY}\n"])
def test_what_an_editor_adds_to_a_credential_file_is_not_sent(content: str, tmp_path: Path) -> None:
    (tmp_path / "jira").write_text(content, encoding="utf-8")

    headers = Credentials(tmp_path, {}, CredentialPolicy(["h"])).headers("srv", "jira", HOST)

    assert headers == {"Authorization": f"Bearer {CANARY}"}


@pytest.mark.parametrize(
    "content", [f"{CANARY}\n{CANARY}", f"{CANARY}\r\nX: 1", f"{CANARY}\u00e9", f"{CANARY}\0x", "\n"]
)
def test_a_credential_file_that_cannot_be_sent_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "jira").write_text(content, encoding="utf-8")

    with pytest.raises(ServerAuthRequired) as refused:
        Credentials(tmp_path, {}, CredentialPolicy(["h"])).headers("srv", "jira", HOST)

    assert_hidden(refused.value, "jira")


def announced(**data: object) -> dict[str, Any]:
    """Return an event of a server, with these fields of its data."""
    return {"specversion": "1.0", "id": "1", "source": "s", "type": "dev.toolscale.server.up", "data": data}


@given(st.sampled_from([*ServerAnnouncement.model_fields, "id", "source", "time", "type", "specversion"]), hostile)
def test_no_event_shows_its_invalid_value(name: str, value: str) -> None:
    event = announced(**{"server_id": "s", "url": "http://h/mcp"} | {name: value})
    if name not in ServerAnnouncement.model_fields:
        event = {**announced(server_id="s", url="http://h/mcp"), name: value}
    try:
        parse_event(event)
    except EventInvalid as error:
        assert_hidden(error, name, "event: ", "no url", "needs a url")


@pytest.mark.parametrize(
    "data",
    [
        {"url": f"http://u:{CANARY}@h/mcp"},
        {"url": f"http://u:{CANARY}/#?@h/mcp"},
        {"url": f"http://h/mcp?key={CANARY}"},
        {"url": f"http://h/mcp?{CANARY}#{CANARY}"},
        {"password": CANARY},
        {"headers": {"Authorization": f'Basic "{CANARY}'}},
        {"apiKey": f"{CANARY}\n"},
        {"auth_token": f"\\{CANARY}"},
    ],
)
@pytest.mark.parametrize("padding", [0, 15_900, 40_000])
def test_a_dead_letter_keeps_no_secret_of_the_body(data: dict[str, Any], padding: int) -> None:
    body = json.dumps({**announced(server_id="s", **data), "extension": "x" * padding, "credential_ref": "jira"})
    early = json.dumps({"extension": "x" * padding, **announced(server_id="s", **data)})

    letters = [DeadLetter.of(0.0, "refused", text) for text in (body, early)]

    assert not any(CANARY in letter.body for letter in letters)
    assert "jira" in letters[0].body or padding


def test_a_dead_letter_of_a_hidden_url_is_refused_when_it_is_sent_again() -> None:
    letter = DeadLetter.of(0.0, "refused", json.dumps(announced(server_id="s", url=f"http://h/mcp?key={CANARY}")))

    with pytest.raises(EventInvalid, match="url"):
        parse_event(letter.body)


SECRETS = {
    "REDIS_URL": f"redis://:{CANARY}#x@127.0.0.1:1/0",
    "QDRANT_URL": f"http://u:{CANARY}@127.0.0.1:1",
    "QDRANT_API_KEY": f"{CANARY}\u00e9",
    "TOOLSCALE_EVENTS_TOKEN": CANARY,
    "TOOLSCALE_SECRET_KEY": CANARY,
    "TOOLSCALE_JWT_ISSUER": f"https://{CANARY}[",
    "TOOLSCALE_CREDENTIAL_HOSTS": CANARY,
}
COMMANDS = {
    "doctor": ("toolscale", "doctor"),
    "ls": ("toolscale", "ls", "--json"),
    "emit": ("toolscale", "emit", "down", "x"),
    "query": ("query",),
    "worker": ("celery", "-A", "workers.app", "worker"),
    "events": ("workers.events_api",),
}


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_no_program_shows_a_secret_and_each_names_the_settings(command: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, **SECRETS, "TOOLSCALE_DATA_DIR": str(tmp_path)}

    ended = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    shown = ended.stdout + ended.stderr
    assert ended.returncode in (1, 2)
    assert CANARY not in shown
    assert "Traceback" not in shown
    assert all(name in shown for name in SECRETS)


@pytest.mark.process
def test_no_output_of_a_service_shows_what_an_entry_hides(tmp_path: Path) -> None:
    with scripted_http(lambda exchange: exchange.play(one_page(tool("read_file")))) as server:
        servers = {
            "good": {"url": server.url, "headers": {"X-Key": "${LINE_END}"}},
            "inside": {"url": server.url, "headers": {"X-Key": "${INSIDE}"}},
            "script": {"url": server.url, "headers": {"X-Key": "${SCRIPT}"}},
            "user": {"url": f"http://u:{CANARY}/x@127.0.0.1:1/mcp"},
            "port": {"url": f"http://127.0.0.1:{CANARY}/mcp"},
            "query": {"url": f"http://127.0.0.1:1/mcp?key={CANARY}"},
            "nul": {"command": "x", "env": {"KEY": f"{CANARY}\0"}},
        }
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        environment = {"LINE_END": f"{CANARY}\n", "INSIDE": f"{CANARY}\nX", "SCRIPT": f"{CANARY}\u00e9"}
        with serving(config, INSIDE=f"{CANARY}\nX", LINE_END=f"{CANARY}\n", SCRIPT=f"{CANARY}\u00e9") as (running, url):
            texts = dict[str, str]()

            def are_known() -> bool:
                texts["ls"] = asked(tmp_path, environment, "ls", "--json")
                return all(name in texts["ls"] for name in servers) and '"listed"' in texts["ls"]

            eventually(are_known, 60, what="each server")
            texts["doctor"] = asked(tmp_path, environment, "doctor")
            texts["page"] = httpx2.get(url.replace("/mcp", "/ui/servers"), follow_redirects=True).text
            texts["api"] = httpx2.get(url.replace("/mcp", "/api/servers")).text
            texts["log"] = running.output()

    assert server.seen[0].headers["X-Key"] == CANARY
    assert [name for name, text in texts.items() if CANARY in text] == []
    assert read_config(config, environment).problems
    assert all(f"{name}: " in texts["doctor"] for name in ("inside", "script", "user", "port", "nul"))


def asked(directory: Path, environment: dict[str, str], *command: str) -> str:
    """Return what a command prints about the service of this directory."""
    settings = {"TOOLSCALE_DATA_DIR": str(directory), "TOOLSCALE_MCP_CONFIG": str(directory / "mcp.json")}
    ended = subprocess.run(
        [sys.executable, "-m", "toolscale", *command],
        env={**os.environ, **environment, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.stdout + ended.stderr


@pytest.mark.process
def test_no_output_shows_the_query_of_an_events_url(tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    with (
        scripted_http(lambda exchange: exchange.play(one_page(tool("read_file")))) as server,
        scripted_http(lambda exchange: exchange.send(500, f"no {CANARY}".encode())) as failing,
        serving(config) as (running, url),
    ):
        urls = {
            "listed": f"{server.url}?key={CANARY}",
            "failing": f"{failing.url}?key={CANARY}",
            "refused": f"http://127.0.0.1:1/mcp?{CANARY}",
            "user": f"http://u:{CANARY}@127.0.0.1:1/mcp",
            "end": f"http://127.0.0.1:1/mcp?a=b#{CANARY}",
        }
        texts = {name: asked(tmp_path, {}, "emit", "up", name, "--url", each) for name, each in urls.items()}

        def are_tried() -> bool:
            texts["ls"] = asked(tmp_path, {}, "ls", "--json")
            is_listed = texts["ls"].count('"listed_at": "') == 1
            return is_listed and all(f'"{name}"' in texts["ls"] for name in urls if name != "user")

        eventually(are_tried, 60, what="each server")
        for name in ("listed", "failing", "refused"):
            texts[f"show {name}"] = asked(tmp_path, {}, "show", name, "--json")
        texts["find"] = asked(tmp_path, {}, "find", "read", "--json")
        texts["letters"] = asked(tmp_path, {}, "dead-letters", "--json")
        texts["doctor"] = asked(tmp_path, {}, "doctor")
        texts["page"] = httpx2.get(url.replace("/mcp", "/ui/servers"), follow_redirects=True).text
        texts["log"] = running.output()

    assert server.seen
    assert [name for name, text in texts.items() if CANARY in text] == []
    assert "data.url" in texts["user"]


@pytest.mark.parametrize(
    "proxy",
    [
        f"http://u:{CANARY}#x@127.0.0.1:1",
        f"http://u:{CANARY}/x@127.0.0.1:1",
        f"http://u:{CANARY}?x@127.0.0.1:1",
        f"http://u:{CANARY}[x@127.0.0.1:1",
        f"http://127.0.0.1:{CANARY}",
        f"socks5://u:{CANARY}@127.0.0.1:1",
        f"u:{CANARY} x@127.0.0.1:1",
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, proxy)

    with pytest.raises(httpx2.UnsupportedProtocol) as refused:
        proxy_for(HttpTarget("http://host.example/mcp"))
    with pytest.raises(ConfigInvalid) as refused_for_store:
        connections("http://host.example:6333")

    assert_hidden(refused.value, "HTTP_PROXY")
    assert_hidden(refused_for_store.value, "HTTP_PROXY")
