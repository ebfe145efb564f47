"""`toolscale ls`, `show` and `logs`: replicas in one row, states, costs, problems and left-out entries."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from shared.catalog import DOCKER_SOURCE, Endpoint
from shared.errors import EventInvalid, ServerUnknown, ServiceRejected
from shared.intents.intents import Intents, open_intents
from shared.settings import load_settings
from shared.upstream.log import StderrLog, log_directory, log_file
from tests.support.builders import up, up_stdio
from tests.support.fakes import FakeIndex
from tests.support.replicated import put_server, tool
from tests.support.running_api import running_api
from toolscale.app import app
from toolscale.commands.servers import COLUMNS, as_object, cells_of, footer, problems, sets_of
from toolscale.console import out, print_table

Row = dict[str, Any]
TWO = (tool("get", tokens=15), tool("put", "puts; and more", tokens=5))


@pytest.fixture
def index() -> FakeIndex:
    return FakeIndex()


@pytest.fixture
def intents(tmp_path: Path, index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> Generator[Intents]:
    """Serve the index and these intents."""
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("REDIS_URL", "QDRANT_URL", "TOOLSCALE_TOKEN"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr("toolscale.app._configure_logging", lambda: None)
    monkeypatch.setattr(out, "width", 200)
    with running_api(tmp_path, index) as url, closing(open_intents(load_settings())) as stored:
        monkeypatch.setenv("TOOLSCALE_URL", url)
        yield stored


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if result.exception:
        raise result.exception
    return result


def documents(*arguments: str) -> list[Row]:
    found: list[Row] = json.loads(run("ls", "--json", *arguments).stdout)
    return found


def listed(intents: Intents, index: FakeIndex, *server_ids: str, name: str, **record: Any) -> None:
    """Announce servers under one declared name, and list two tools of each."""
    for server_id in server_ids:
        intents.record(up(server_id), due_in_s=60)
        intents.begin(server_id)
        intents.commit(server_id, 1)
        put_server(index, server_id, TWO, name, **record)


def replicated(intents: Intents, index: FakeIndex) -> None:
    """Serve one server, four replicas of which one fails and one is stopped, and one without a list."""
    listed(intents, index, "files", name="files")
    listed(intents, index, "web0", "web3", name="web")
    listed(intents, index, "web1", name="web", stale_since=1.0, last_error="web1: no answer within 30 s", failures=1)
    intents.fail("web1", 1, "web1: no answer within 30 s")
    listed(intents, index, "web2", name="web", status="stopped")
    intents.record(up("new"), due_in_s=60)


def test_replicas_are_one_row_with_the_number_of_servers_in_each_state(intents: Intents, index: FakeIndex) -> None:
    replicated(intents, index)

    shown = run("ls").stdout.splitlines()

    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in shown]
    assert cells[1][:4] == ["files", "listed", "2", "20"]
    assert cells[2][:2] == ["new", "waiting"]
    assert cells[3][:4] == ["web0 × 4", "2 listed, 1 stale, 1 stopped", "2", "60"]
    assert shown[4] == "8 tools, 80 tokens; without replicas 4 tools, 40 tokens"
    assert shown[5].startswith("6 servers: 3 listed, 1 ")
    assert shown[6] == "web1: no answer within 30 s"


def test_json_has_the_state_of_each_replica(intents: Intents, index: FakeIndex) -> None:
    replicated(intents, index)

    files, _, web = documents()

    assert (files["server_id"], files["state"], "replicas" in files) == ("files", "listed", False)
    assert (files["tools"], files["tokens"], files["share"]) == (2, 20, 0.25)
    assert (web["server_id"], web["count"], web["tokens"], "state" in web) == ("web0", 4, 60, False)
    assert [(replica["server_id"], replica["state"], replica["failures"]) for replica in web["replicas"]] == [
        ("web0", "listed", 0),
        ("web1", "stale", 1),
        ("web2", "stopped", 0),
        ("web3", "listed", 0),
    ]
    assert web["replicas"][1]["listed_at"].endswith("+00:00")


def test_ls_with_a_server_shows_each_of_its_replicas(intents: Intents, index: FakeIndex) -> None:
    replicated(intents, index)

    opened = run("ls", "web3").stdout
    with pytest.raises(ServerUnknown, match="no server 'wbe3' is known; did you mean web3"):
        run("ls", "wbe3")

    *replicas, problem = opened.splitlines()[1:]
    assert [line.split()[0] for line in replicas] == ["web0", "web0", "web1", "web2", "web3"]
    assert "stale (1)" in replicas[2]
    assert problem == "web1: no answer within 30 s"


def test_failing_servers_are_those_that_should_run_and_whose_last_listing_failed(
    intents: Intents, index: FakeIndex
) -> None:
    replicated(intents, index)
    intents.record(up("never"), due_in_s=60)
    intents.fail("never", 1, "never: HTTP 500")
    # not listed for a day, so stopped, and still wanted
    intents.record(up("gone"), due_in_s=60)
    put_server(index, "gone", TWO, "gone", status="stopped", stale_since=1.0)
    intents.stop_retrying("gone", 1, "gone: no connection")

    failing = documents("--failing")

    assert [row["server_id"] for row in failing] == ["gone", "never", "web0"]
    assert {row["server_id"]: row["state"] for row in failing[:2]} == {"gone": "stopped", "never": "failing"}
    assert [line.split()[0] for line in run("ls", "--failing").stdout.splitlines()[1:5]] == [
        "gone",
        "never",
        "web0",
        "web1",
    ]


def test_changed_tools_that_no_operator_has_accepted_are_counted_beside_the_state(
    intents: Intents, index: FakeIndex
) -> None:
    for number, server_id in enumerate(("files", "web0", "web1")):
        listed(intents, index, server_id, name=server_id[:3])
        intents.commit(server_id, 1, unaccepted=1 + 1_000 * number)

    shown = run("ls").stdout

    assert "listed, 1 tool changed " in shown
    assert "listed, 3,002 tools changed " in shown
    assert "changed tools on 3: `toolscale diff files`" in shown


def test_ls_shows_the_refused_announcement_of_another_owner(intents: Intents) -> None:
    intents.record(up("files"), due_in_s=60)
    with pytest.raises(EventInvalid):
        intents.record(up("files", source=DOCKER_SOURCE), due_in_s=60)

    assert "files: an announcement by toolscale/docker was refused" in run("ls").stdout


def test_show_has_the_tools_the_last_lines_and_the_failure(intents: Intents, index: FakeIndex) -> None:
    intents.record(up_stdio("notes"), due_in_s=60)
    put_server(
        index, "notes", TWO, "notes", endpoint=Endpoint(transport="stdio"), last_error="notes: gone", stale_since=1.0
    )
    intents.fail("notes", 1, "notes: gone")
    directory = log_directory(load_settings())
    assert directory
    log = StderrLog(log_file(directory, "notes"), ["s3cr3t"])
    log.write(b"first\nno login with s3cr3t\n")
    log.store(log.take())

    shown, document = run("show", "notes").stdout.splitlines(), json.loads(run("show", "notes", "--json").stdout)
    lines = run("logs", "notes", "--lines", "1").stdout.splitlines()

    assert [line.split()[:3] for line in shown[1:3]] == [["get", "15", "75.0%"], ["put", "5", "25.0%"]]
    assert shown[3] == "2 tools, 20 tokens: 100.0% of all"
    assert shown[-2:] == lines == ["no login with ***", "stale (1): notes: gone"]
    assert document["lines"][1:] == ["first", "no login with ***"]
    assert [(each["name"], each["tokens"]) for each in document["tools"]] == [("get", 15), ("put", 5)]
    with pytest.raises(ServiceRejected, match="no server 'nots' is known; did you mean notes"):
        run("show", "nots")


def row(server: str, **changes: object) -> Row:
    known = {"server_id": server, "set": server, "state": "listed", "tools": 1, "tokens": 5, "share": 0.5}
    times = {"listed_at": 1.0, "next_reconcile_at": 1.0}
    rest = {"failures": 0, "unaccepted": 0, "last_error": None, "conflict": None, "is_failing": False}
    return known | times | rest | changes


names = st.text(alphabet="abcdefgh-_./", min_size=1, max_size=120)


@given(st.integers(45, 80), names, st.integers(0, 10**10))
def test_ls_cuts_no_number(width: int, server: str, tokens: int) -> None:
    columns = [column for column in COLUMNS if column.title not in ("share", "reconcile")]
    cells = dict(zip((column.title for column in COLUMNS), cells_of([row(server, tokens=tokens)]), strict=True))
    before, out.width = out.width, width

    with out.capture() as captured:
        print_table(columns, [[cells[column.title] for column in columns]])
    out.width = before

    assert all(len(line) <= width for line in captured.get().splitlines())
    assert f"{tokens:,}" in captured.get().split()


def test_of_several_replicas_the_first_error_is_shown_and_the_same_problem_once() -> None:
    replicas = [row(name, set="w1", last_error=f"{name}: HTTP 500") for name in ("w1", "w2")]
    alone = [row("a", last_error="a: gone")]

    assert problems([alone, alone, replicas]) == ["a: gone", "w1: HTTP 500 (and 1 more)"]


def test_an_entry_that_is_left_out_has_a_row_beside_the_server_of_its_name() -> None:
    left_out = [{"server_id": "a", "reason": "args: expected a list"}, {"server_id": "new", "reason": "KEY is not set"}]

    sets = sets_of({"servers": [row("a"), row("b", set="a")], "left_out": left_out})

    assert [[each["server_id"] for each in servers] for servers in sets] == [["a"], ["b"], ["new"]]
    assert [as_object(servers).get("left_out") for servers in sets] == ["args: expected a list", None, "KEY is not set"]
    assert cells_of(sets[2])[1:] == ["left out", "", "", "", "", ""]


def test_a_service_without_intents_has_no_backlog() -> None:
    assert footer([[row("a")], [row("b")]], {"servers": []}) == ["2 servers: 2 listed"]
