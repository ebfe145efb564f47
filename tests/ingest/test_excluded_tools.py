"""The tools of a server that its options exclude are not listed, whatever was listed before."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.catalog import Listing
from shared.errors import ConfigInvalid
from shared.intents.intent import Intent
from shared.settings import load_settings
from tests.support.builders import up, write_path
from tests.support.hostile.listed_server import HANDSHAKE, SESSION, ListedServer
from tests.support.hostile.messages import tool
from tests.support.hostile.scripted_http import scripted_http
from workers.fetch.lister import Lister
from workers.fetch.turns import LargePayloadSlots, StartTurns
from workers.ingest import reconcile

pytestmark = pytest.mark.process

ALL = ["delete_mail", "read_mail"]


@pytest.fixture
def server() -> ListedServer:
    return ListedServer(pages=[[tool("read_mail"), tool("delete_mail")]])


@pytest.fixture
def url(server: ListedServer) -> Generator[str]:
    with scripted_http(server.respond) as scripted:
        yield scripted.url


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text("", encoding="utf-8")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {}}', encoding="utf-8")
    return path


@pytest.fixture
def lister(policy: Path, config: Path, tmp_path: Path) -> Lister:
    settings = load_settings(policy_file=policy, mcp_config=config, data_dir=tmp_path)
    return Lister(settings, LargePayloadSlots(1), StartTurns(1))


def names(listing: Listing) -> list[str]:
    return sorted(definition.name for definition in listing.tools)


def excluded_by_rule(policy: Path, config: Path, url: str) -> None:
    policy.write_text('[[servers]]\nlabels = { team = "sales" }\nexcludeTools = ["delete_*"]\n', encoding="utf-8")


def excluded_by_entry(policy: Path, config: Path, url: str) -> None:
    entry: dict[str, Any] = {"url": url, "excludeTools": ["delete_mail"]}
    config.write_text(json.dumps({"mcpServers": {"s": entry}}), encoding="utf-8")


@pytest.mark.parametrize("exclude", [excluded_by_rule, excluded_by_entry])
def test_a_server_whose_answers_are_unchanged_loses_a_tool_that_is_excluded_now(
    exclude: Callable[[Path, Path, str], None],
    server: ListedServer,
    lister: Lister,
    policy: Path,
    config: Path,
    url: str,
) -> None:
    announcement = up(url=url, team="sales").data
    assert names(lister.list_server(announcement, 1.0)) == ALL
    server.methods.clear()

    exclude(policy, config, url)

    assert names(lister.list_server(announcement, 1.0)) == ["read_mail"]
    assert server.methods == SESSION[HANDSHAKE]  # the recorded session alone
    policy.write_text("", encoding="utf-8")
    config.write_text('{"mcpServers": {}}', encoding="utf-8")
    assert names(lister.list_server(announcement, 1.0)) == ALL


def test_an_excluded_tool_is_not_reported_as_rejected(
    server: ListedServer, lister: Lister, policy: Path, config: Path, url: str
) -> None:
    server.pages = [[tool("read_mail"), {"name": "delete_mail"}, {"name": "send_mail"}]]
    excluded_by_rule(policy, config, url)

    listing = lister.list_server(up(url=url, team="sales").data, 1.0)

    assert [rejected.name for rejected in listing.rejected] == ["send_mail"]


def test_a_tool_leaves_the_index_once_it_is_excluded_and_returns_after_that(
    lister: Lister, policy: Path, url: str, tmp_path: Path
) -> None:
    path = write_path(tmp_path)

    def list_server(intent: Intent) -> Listing:
        return lister.list_server(intent.announcement, 1.0)

    deps = replace(path.deps, list_server=list_server)
    indexed: list[list[str]] = []
    with closing(deps.intents):
        for rules in ("", '[[servers]]\nincludeTools = ["read_*"]\n', ""):
            policy.write_text(rules, encoding="utf-8")
            deps.intents.record(up(url=url), due_in_s=0)
            reconcile("s", deps)
            indexed.append(sorted(deps.index.tool_states("s")))

    assert indexed == [ALL, ["read_mail"], ALL]


def test_no_server_is_listed_while_the_policy_file_was_never_valid(policy: Path) -> None:
    policy.write_text("[[servers]]\nexclude = 1\n", encoding="utf-8")

    with pytest.raises(ConfigInvalid, match="exclude"):
        Lister(load_settings(policy_file=policy), LargePayloadSlots(1), StartTurns(1))
