"""The operator's file, edited while the embedded composition runs: what it says is what is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shared.catalog import Scope
from shared.intents import times
from shared.intents.intent import Intent
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.upstream.followed_config import FollowedConfig, read_followed_config
from tests.support.builders import changed, down, up
from tests.support.events_api import Producer
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.waiting import eventually
from toolscale.embedded.composition import Embedded, run_embedded
from workers.sources.mcp_json import config_followed

pytestmark = pytest.mark.process


def replace(path: Path, **servers: dict[str, Any]) -> None:
    """Write as editors do: another file, renamed over this one."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
    written.replace(path)


def finds(embedded: Embedded, *names: str) -> Callable[[], bool]:
    tools = embedded.deps.index.tools
    return lambda: {each.qualified_name for each in tools(Scope(), limit=100).tools} == set(names)


def offers_its_key(exchange: Exchange) -> None:
    exchange.play(one_page(tool(f"with_{exchange.headers['X-Key']}_key")))


def test_servers_come_change_and_go_as_the_file_is_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "")
    monkeypatch.setattr(times, "REDELIVER_AFTER_S", 0.5)
    monkeypatch.setattr("toolscale.embedded.composition.config_followed", partial(config_followed, interval_s=0.05))
    path = tmp_path / "mcp.json"
    settings = load_settings(data_dir=tmp_path, mcp_config=path)
    with scripted_http(offers_its_key) as server, run_embedded(settings) as embedded:
        entry = {"url": server.url, "headers": {"X-Key": "old"}}
        replace(path, a=entry)

        with embedded.following(path):
            eventually(finds(embedded, "a:with_old_key"))

            replace(path, a={**entry, "headers": {"X-Key": "new"}})
            eventually(finds(embedded, "a:with_new_key"))

            replace(path, a={**entry, "headers": {"X-Key": "new"}}, b=entry)
            eventually(finds(embedded, "a:with_new_key", "b:with_old_key"))

            path.write_text("{", encoding="utf-8")
            replace(path, b=entry)
            eventually(finds(embedded, "b:with_old_key"))


def test_the_state_of_the_file_is_stored_while_it_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "")
    path = tmp_path / "mcp.json"
    replace(path, bad={"comand": "x"})
    settings = load_settings(data_dir=tmp_path, mcp_config=path)

    with run_embedded(settings) as embedded:
        with suppress(KeyboardInterrupt), embedded.following(path):  # as Ctrl-C ends `toolscale serve`
            state = read_followed_config(settings)
            assert state is not None
            assert (state.path, state.servers, [entry.name for entry in state.left_out]) == (str(path), 0, ["bad"])
            raise KeyboardInterrupt
        assert read_followed_config(settings) is None


@pytest.mark.slow
@pytest.mark.redis
def test_a_running_worker_uses_a_changed_header_and_acts_on_a_new_entry(own_redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    environment = {"TOOLSCALE_MCP_CONFIG": str(path)}
    with scripted_http(offers_its_key) as server:
        entry = {"url": server.url, "headers": {"X-Key": "old"}}
        replace(path, a=entry)
        with Composition(own_redis_url, tmp_path, environment).worker() as worker:
            worker.wait_for('"event": "server_indexed"')

            replace(path, a={**entry, "headers": {"X-Key": "new"}}, b=entry)

            worker.wait_for('"server": "b"')
            eventually(lambda: any(exchange.headers["X-Key"] == "new" for exchange in server.seen))
            state = read_followed_config(load_settings(redis_url=own_redis_url))
            assert state == FollowedConfig(path=str(path), servers=2)


@pytest.mark.redis
def test_the_events_api_without_the_file_rejects_events_for_its_servers(own_redis_url: str, tmp_path: Path) -> None:
    path, port, token = tmp_path / "mcp.json", free_port(), "the-token-of-producers"
    composition = Composition(
        own_redis_url, tmp_path, {"TOOLSCALE_EVENTS_TOKEN": token, "TOOLSCALE_EVENTS_PORT": str(port)}
    )
    with (
        scripted_http(lambda exchange: exchange.play(one_page(tool("pay")))) as server,
        composition.run("events-api", "-m", "workers.events_api") as events_api,
    ):
        replace(path, payments={"url": server.url, "groups": ["finance"]})
        with composition.worker(TOOLSCALE_MCP_CONFIG=str(path)) as worker:
            worker.wait_for('"event": "server_indexed"')
            events_api.wait_for("events_api_started")
            producer = Producer(f"http://127.0.0.1:{port}", token)

            hijack = up("payments", groups=["everyone"], url="http://127.0.0.1:6/mcp").model_dump(mode="json")
            forged = {**hijack, "source": "toolscale/mcp.json"}
            answers = [producer.post(sent) for sent in (hijack, forged, down("payments").model_dump(mode="json"))]
            asked = producer.post(changed("payments").model_dump(mode="json"))

            worker.wait_for('"event": "server_indexed"', times=2)
            letters = recorded_state(own_redis_url)
    assert [(answer.status, answer.content["field"]) for answer in answers] == [
        (400, "data.server_id"),
        (400, "source"),
        (400, "data.server_id"),
    ]
    assert asked.status == 202
    intent, reasons = letters
    assert intent is not None
    assert (intent.status, intent.announcement.url, intent.announcement.groups) == (
        "running",
        server.url,
        frozenset({"finance"}),
    )
    assert len(reasons) == 3


def recorded_state(redis_url: str) -> tuple[Intent | None, list[str]]:
    """Return the intent of the server, and the reasons of the dead letters."""
    with closing(open_intents(load_settings(redis_url=redis_url))) as store:
        return store.intent("payments"), [letter.reason for letter in store.dead_letters(9)]
