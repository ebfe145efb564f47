"""`toolscale ls` where several servers offer the same tools."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from shared.catalog import DOCKER_SOURCE
from shared.errors import EventInvalid
from shared.intents.intents import open_intents
from shared.settings import load_settings
from tests.support.builders import up
from toolscale.app import app
from toolscale.client.costs import ServerCost, ToolCost
from toolscale.client.servers import Row, as_object, rows, servers, table, total

runner = CliRunner()


@pytest.fixture(autouse=True)
def _data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_MCP_CONFIG"):
        monkeypatch.setenv(name, "")


def announce(*server_ids: str) -> None:
    for server in server_ids:
        runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])


def cost_of(server: str, tokens: int, *replicas: str, count: int = 1) -> ServerCost:
    return ServerCost(server, tokens, 0.5, (ToolCost("get"), ToolCost("put")), replicas, count)


def replicated() -> list[Row]:
    """Return the rows of one server, of four replicas of which three run and two answer, and of one without a list."""
    announce("files", "new", "web0", "web1", "web2", "web3")
    with closing(open_intents(load_settings())) as intents:
        intents.commit("files", 1, "1f files")
        for server in ("web0", "web1", "web2", "web3"):
            intents.commit(server, 1, "2e web")
        intents.fail("web1", 1, "web1: no answer within 30 s")
    runner.invoke(app, ["emit", "down", "web2"])
    with closing(open_intents(load_settings())) as intents:
        intents.commit("web2", 2)
    costs = (cost_of("files", 40), cost_of("web0", 300, "web0", "web1", "web3", count=3))
    return rows(servers(load_settings()), {cost.server: cost for cost in costs})


def test_replicas_are_one_row_with_the_number_of_servers_in_each_state() -> None:
    console = Console(width=200)

    with console.capture() as shown:
        console.print(table(replicated(), 200))

    lines = [line.split("  ") for line in shown.get().splitlines()[1:]]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert [line[:4] for line in cells[:1]] == [["files", "listed", "2", "40"]]
    assert cells[1][:2] == ["new", "not listed yet"]
    assert cells[2][:4] == ["web0 × 4", "2 listed, 1 failing, 1 stopped", "2", "300"]
    assert len(cells) == 3


def test_changed_tools_that_no_operator_has_accepted_are_counted_beside_the_state() -> None:
    announce("files", "web0", "web1")
    with closing(open_intents(load_settings())) as intents:
        intents.commit("files", 1, "1f files", 1)
        for number, server in enumerate(("web0", "web1"), start=1):
            intents.commit(server, 1, "2e web", number * 1_000)
    console = Console(width=200)

    with console.capture() as shown:
        console.print(table(rows(servers(load_settings()), {}), 200))

    assert "listed, 1 tool changed " in shown.get()
    assert "listed, 3,000 tools changed " in shown.get()


def test_replicas_that_are_all_in_one_state_show_it_once() -> None:
    announce("web0", "web1")
    with closing(open_intents(load_settings())) as intents:
        for server in ("web0", "web1"):
            intents.commit(server, 1, "2e web")

    assert "web0 × 2  listed" in runner.invoke(app, ["ls"]).stdout


def test_json_has_the_state_of_each_replica() -> None:
    files, _, web = map(as_object, replicated())

    assert (files["server_id"], files["state"], "replicas" in files) == ("files", "listed", False)
    assert (web["server_id"], web["count"], web["tokens"], "state" in web) == ("web0", 4, 300, False)
    assert [(replica["server_id"], replica["state"]) for replica in web["replicas"]] == [
        ("web0", "listed"),
        ("web1", "failing (1)"),
        ("web2", "stopped"),
        ("web3", "listed"),
    ]


def test_ls_with_a_server_shows_each_of_its_replicas() -> None:
    replicated()

    opened = runner.invoke(app, ["ls", "web3"]).stdout
    misspelt = runner.invoke(app, ["ls", "wbe3"])

    *replicas, problem = opened.splitlines()[1:]
    assert [line.split()[0] for line in replicas] == ["web0", "web0", "web1", "web2", "web3"]
    assert problem == "web1: no answer within 30 s"
    assert str(misspelt.exception) == "no server 'wbe3' is known; did you mean web3?"


def test_ls_shows_the_refused_announcement_of_another_owner() -> None:
    announce("files")
    with closing(open_intents(load_settings())) as intents, pytest.raises(EventInvalid):
        intents.record(up("files", source=DOCKER_SOURCE), due_in_s=60)

    assert "files: an announcement by toolscale/docker was refused" in runner.invoke(app, ["ls"]).stdout


def test_the_sum_of_replicas_is_shown_beside_that_of_one_server_of_each() -> None:
    found = replicated()

    assert total(found) == "8 tools, 340 tokens; without replicas 4 tools, 140 tokens"
    assert total([row for row in found if row.count == 1]) is None


def test_a_service_alone_gives_the_number_of_replicas_and_the_first_of_them() -> None:
    (row,) = rows([], {"web0": cost_of("web0", 300, "web0", "web1", "web10", count=11)})

    assert as_object(row) == {
        "server_id": "web0",
        "tools": 2,
        "tokens": 300,
        "share": 0.5,
        "count": 11,
        "replicas": [{"server_id": "web0"}, {"server_id": "web1"}, {"server_id": "web10"}],
    }
