from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from query.usage.usage import TOOLS_LIST, CatalogueSize, RowKey, open_usage, today
from shared.errors import ConfigInvalid, EventInvalid, ServiceRejected, ServiceUnreachable
from shared.intents.intent import MigrationProgress
from shared.intents.intents import open_intents
from shared.settings import load_settings
from shared.upstream.followed_config import FollowedConfig, followed_config_store
from shared.upstream.mcp_json import EntryProblem
from tests.support.builders import changed, down, up, up_stdio
from tests.support.running_api import commands_served
from toolscale.app import app
from toolscale.cli import main
from toolscale.commands.tools import print_tools
from toolscale.console import out
from toolscale.demo.demo import DemoServerResult, Report, print_report
from toolscale.embedded.service import connection_help
from toolscale.embedded.startup_progress import summary
from workers.emit import Emitter, Sender
from workers.events_api.producers import Producer, ProducerRights

runner = CliRunner()


@pytest.fixture(autouse=True)
def _service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Serve the stores in the data directory."""
    with commands_served(tmp_path, monkeypatch):
        yield


def test_emit_prints_the_recorded_intent() -> None:
    result = runner.invoke(app, ["emit", "up", "files", "--url", "http://127.0.0.1:1/mcp", "--group", "dev", "--json"])

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "server_id": "files",
        "status": "running",
        "generation": 1,
    }


def test_down_and_changed_follow_an_announced_server() -> None:
    runner.invoke(app, ["emit", "up", "files", "--url", "http://127.0.0.1:1/mcp"])

    assert "generation 2 (running)" in runner.invoke(app, ["emit", "changed", "files"]).stdout
    assert "generation 3 (stopped)" in runner.invoke(app, ["emit", "down", "files"]).stdout


def test_an_event_for_a_misspelt_server_names_the_near_ones() -> None:
    runner.invoke(app, ["emit", "up", "files", "--url", "http://127.0.0.1:1/mcp"])
    with closing(open_intents(load_settings())) as intents:
        intents.mark_complete()

    result = runner.invoke(app, ["emit", "down", "flies"])

    assert isinstance(result.exception, ServiceRejected)
    assert "did you mean files?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["down", "never-announced"], "data.server_id"),
        (["up", "s"], "data"),
        (["up", "s", "--url", "ftp://x"], "data.url"),
        (["up", "a:b", "--url", "http://x"], "data.server_id"),
        (["up", "s", "--url", "http://x", "--group", "two words"], "data.groups.0"),
    ],
)
def test_a_refused_command_names_the_field_and_leaves_no_dead_letter(arguments: list[str], field: str) -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.mark_complete()

    result = runner.invoke(app, ["emit", *arguments])

    assert isinstance(result.exception, ServiceRejected)
    assert str(result.exception).startswith(f"{field}: ")
    assert json.loads(runner.invoke(app, ["dead-letters", "--json"]).stdout) == []


def test_a_cloud_event_is_sent_as_it_is_from_standard_input() -> None:
    document = {
        "specversion": "1.0",
        "id": "1",
        "source": "me",
        "type": "dev.toolscale.server.up",
        "data": {"server_id": "s", "url": "http://127.0.0.1:1/mcp"},
    }

    result = runner.invoke(app, ["emit", "event", "-"], input=json.dumps(document))

    assert "s: recorded as generation 1 (running)" in result.stdout


def test_dead_letters_are_shown_as_a_table_and_their_absence_as_a_sentence() -> None:
    assert "There are no dead letters." in runner.invoke(app, ["dead-letters"]).stdout

    runner.invoke(app, ["emit", "event", "-"], input="not JSON")

    assert "event: not JSON" in runner.invoke(app, ["dead-letters"]).stdout


def test_a_dead_letter_can_be_sent_again_by_hand_and_not_for_a_producer_with_rights_of_its_own() -> None:
    ci = Producer("ci", ProducerRights(sha256="0" * 64, id_prefixes=frozenset({"ci/"}), hosts=frozenset({"h"})))
    with closing(open_intents(load_settings())) as intents:
        intents.mark_complete()
        runner.invoke(app, ["emit", "event", "-"], input=changed("files").model_dump_json())
        emitter, of_ci = Emitter(intents, lambda _: None, 0), Sender(ci.admit, ci.source)
        with pytest.raises(EventInvalid):
            emitter.accept(down("files").model_dump(mode="json"), of_ci)
        intents.record(up("files"), due_in_s=0)
    foreign, early = [letter["body"] for letter in json.loads(runner.invoke(app, ["dead-letters", "--json"]).stdout)]

    refused = runner.invoke(app, ["emit", "event", "-"], input=foreign)
    again = runner.invoke(app, ["emit", "event", "-"], input=early)

    assert "is reserved" in str(refused.exception)
    assert "files: recorded as generation 2 (running)" in again.stdout


HOSTILE = "[/x] [red]\x1b[2J\x9b2J\u202e :smile:"


def test_what_a_dead_letter_holds_is_shown_and_never_acted_upon(tmp_path: Path) -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.add_dead_letter(f"because {HOSTILE}", HOSTILE + "\ud800")

    as_table = runner.invoke(app, ["dead-letters"], terminal_width=200)
    as_json = runner.invoke(app, ["dead-letters", "--json"])

    assert "[/x] [red]" in as_table.stdout
    assert ":smile:" in as_table.stdout
    assert not [sign for sign in as_table.stdout + as_json.stdout if not sign.isprintable() and sign != "\n"]
    assert json.loads(as_json.stdout)[0]["reason"] == f"because {HOSTILE}"


def test_an_error_is_one_line_also_with_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "[" / "no].json\x1b[2J"
    monkeypatch.setattr("sys.argv", ["toolscale", "serve", "--config", str(config)])

    with pytest.raises(SystemExit) as ended:
        main()

    written = capfd.readouterr().err
    assert ended.value.code == 2
    assert written.startswith("error: ")
    assert "/[/no].json\ufffd[2J" in written
    assert written.count("\n") == 1


@pytest.mark.parametrize("label", ["foo", "=foo", "[/x]"])
def test_a_label_without_a_key_and_a_value_is_refused(label: str) -> None:
    result = runner.invoke(app, ["emit", "up", "s", "--url", "http://h", "--label", label])

    assert result.exit_code == 2
    assert "expected KEY=VALUE" in result.stderr


def test_a_setting_out_of_bounds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_LISTING_TIMEOUT_S", "-1")

    result = runner.invoke(app, ["dead-letters"])

    assert isinstance(result.exception, ConfigInvalid)
    assert "listing_timeout_s" in str(result.exception)


def test_help_works_with_invalid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_PORT", "none")

    result = runner.invoke(app, ["serve", "--help"])

    assert result.exit_code == 0
    assert "--stdio" in result.stdout


def test_ls_shows_the_progress_of_a_model_change() -> None:
    with closing(open_intents(load_settings())) as intents:
        intents.note_migration(MigrationProgress(model="better/model", servers=12, done=5, at=intents.now()))

    result = runner.invoke(app, ["ls", "--json"])

    assert json.loads(result.stdout) == []
    assert "better/model takes over once every tool is embedded by it: 5 of 12 servers are done" in result.stderr


def test_servers_are_listed_with_their_state_and_their_error() -> None:
    assert "No server was announced yet." in runner.invoke(app, ["ls"]).stdout
    for server in ("waiting", "failing"):
        runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])
    with closing(open_intents(load_settings())) as intents:
        intents.fail("failing", 1, "failing: no answer within 30 s")
        intents.record(up_stdio("installing"), due_in_s=60)
        intents.begin("installing")

    document = json.loads(runner.invoke(app, ["ls", "--json"]).stdout)

    states = {server["server_id"]: (server["state"], server["last_error"]) for server in document}
    assert states == {
        "failing": ("failing", "failing: no answer within 30 s"),
        "installing": ("installing", None),
        "waiting": ("waiting", None),
    }
    assert "failing (1)" in runner.invoke(app, ["ls"]).stdout
    assert "no answer" in runner.invoke(app, ["ls"], env={"COLUMNS": "200"}).stdout
    (failing,) = json.loads(runner.invoke(app, ["ls", "--failing", "--json"]).stdout)
    assert failing["server_id"] == "failing"


def test_without_a_failing_server_a_sentence_states_it_and_a_watch_excludes_json() -> None:
    assert "No server fails." in runner.invoke(app, ["ls", "--failing"]).stdout
    assert runner.invoke(app, ["ls", "--watch", "--json"]).exit_code == 2


def test_ls_names_the_followed_file_and_lists_its_left_out_entries() -> None:
    runner.invoke(app, ["emit", "up", "kept", "--url", "http://127.0.0.1:1/mcp"])
    left_out = (
        EntryProblem(name="My docs", reason="the environment variable KEY is not set"),
        EntryProblem(name="kept", reason="args: expected a list"),
    )
    with closing(followed_config_store(load_settings())) as store:
        store.put(FollowedConfig(path="/home/ann/mcp.json", servers=3, left_out=left_out))

    shown = runner.invoke(app, ["ls"], env={"COLUMNS": "200"})
    document = json.loads(runner.invoke(app, ["ls", "--json"]).stdout)

    assert "/home/ann/mcp.json: 3 usable servers; left out: 2" in shown.stderr
    assert "My-docs: its entry is left out: the environment variable KEY is not set" in shown.stdout
    assert "kept: its entry is left out: args: expected a list" in shown.stdout
    assert [(row["server_id"], row["state"], row["left_out"]) for row in document] == [
        ("My-docs", "left out", "the environment variable KEY is not set"),
        ("kept", "waiting", "args: expected a list"),
    ]


def test_the_summary_of_a_start_ends_with_the_left_out_entries() -> None:
    left_out = (EntryProblem(name="docs", reason="args: expected a list"),)

    lines = summary([], 0, 0, FollowedConfig(path="/mcp.json", left_out=left_out))

    assert lines[1:] == ["  left out: docs: args: expected a list"]


def test_a_narrow_terminal_cuts_no_id_and_omits_dispensable_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    server = "a-server-whose-id-is-longer-than-the-terminal-is-wide"
    runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])
    monkeypatch.setattr(out, "width", 40)

    table = runner.invoke(app, ["ls"]).stdout.splitlines()[:-1]

    assert "".join(line.split(" ")[1] for line in table[1:]) == server
    assert not re.search("…|reconcile|share|problem", "".join(table))


def test_below_the_servers_are_the_numbers_of_states_due_reconciliations_and_dead_letters() -> None:
    for server in ("one", "two"):
        runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])
    runner.invoke(app, ["emit", "event", "-"], input="not JSON")

    last = runner.invoke(app, ["ls"]).stdout.splitlines()[-1]

    assert re.fullmatch(r"2 servers: 2 waiting; 2 reconciliations due, the first for \d+ s; 1 dead letters", last)


def test_a_resync_requests_reconciliations_of_all_running_servers_or_the_named_ones() -> None:
    for server in ("one", "two", "stopped"):
        runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])
    runner.invoke(app, ["emit", "down", "stopped"])

    every = json.loads(runner.invoke(app, ["resync", "--json"]).stdout)
    named = runner.invoke(app, ["resync", "two"]).stdout

    assert {(recorded["server_id"], recorded["generation"]) for recorded in every} == {("one", 2), ("two", 2)}
    assert named.startswith("two: recorded as generation 3 (running)")


def test_a_search_in_a_misspelt_server_names_the_near_ones() -> None:
    runner.invoke(app, ["emit", "up", "docs", "--url", "http://127.0.0.1:1/mcp"])

    misspelt = runner.invoke(app, ["find", "anything", "--server", "dosc"])
    known = runner.invoke(app, ["find", "anything", "--server", "docs"])

    assert str(misspelt.exception) == "no server 'dosc' is known; did you mean docs?"
    assert known.exit_code == 0


def test_without_a_match_the_nearest_tools_are_named_and_an_uncounted_tool_has_no_number() -> None:
    searched = {"baseline_tokens": 900, "returned_tokens": 0, "savings_percentage": 100.0, "encoding": "cl100k_base"}
    none = {
        "tools": [],
        "no_match": True,
        "nearest": ["time:now: Tell it.", "git:log"],
        "token_metrics": searched,
    }
    uncounted = {"tools": [{"name": "time:now", "summary": "now(): Tell"}], "token_metrics": searched}

    with out.capture() as nothing:
        print_tools(none)
    with out.capture() as something:
        print_tools(uncounted)

    assert nothing.get().splitlines()[-2:] == ["  time:now: Tell it.", "  git:log"]
    assert "saved" not in nothing.get()
    assert something.get().splitlines()[1].split() == ["time:now", "():", "Tell"]


def test_the_demo_states_what_a_client_pays_in_the_model_form_beside_the_wire_form() -> None:
    sizes = {"tools": 2, "tokens": 256, "wire_tokens": 525}
    server = DemoServerResult(server="time", declared_name="t", protocol_version=None, error=None, **sizes)
    report = Report(servers=[server], encoding="cl100k_base", profile="generic", ingestion_s=1.0, answers=[], **sizes)

    with out.capture() as printed:
        print_report(report)

    text = " ".join(printed.get().split())
    assert "time t 2 256 525" in text
    assert "pays 256 tokens (cl100k_base, generic profile; 525 in the wire form)" in text


def test_a_resync_of_a_server_that_is_not_there_or_stopped_records_nothing() -> None:
    for server in ("docs", "stopped"):
        runner.invoke(app, ["emit", "up", server, "--url", "http://127.0.0.1:1/mcp"])
    runner.invoke(app, ["emit", "down", "stopped"])

    misspelt = runner.invoke(app, ["resync", "docs", "dosc"]).exception
    stopped = runner.invoke(app, ["resync", "docs", "stopped"]).exception

    assert str(misspelt) == "no server 'dosc' is known; did you mean docs?"
    assert isinstance(stopped, ServiceUnreachable)
    assert "it is stopped" in str(stopped)
    with closing(open_intents(load_settings())) as intents:
        assert {intent.server_id: intent.desired for intent in intents.intents()} == {"docs": 1, "stopped": 2}


def test_the_version_is_printed() -> None:
    assert runner.invoke(app, ["--version"]).stdout.startswith("toolscale 0.")


def test_what_to_paste_is_valid_json_and_names_the_file() -> None:
    settings = load_settings(mcp_config=Path("/etc/my servers/mcp.json"), data_dir=Path("/var/lib/toolscale"))

    text = connection_help("http://127.0.0.1:1/mcp", settings)

    assert "--config '/etc/my servers/mcp.json' --data-dir /var/lib/toolscale" in text
    assert json.loads(text[text.index("{") :])["mcpServers"]["toolscale"]["url"] == "http://127.0.0.1:1/mcp"


def test_savings_are_read_from_the_file_of_a_service(tmp_path: Path) -> None:
    day = today()
    with closing(open_usage(load_settings(data_dir=tmp_path))) as usage:
        listed = {"answers": 1, "tokens": 60, "baseline_tokens": 1_000, "baseline_tools": 100}
        usage.add({RowKey(day, "ann", "", TOOLS_LIST): listed})
        usage.add({RowKey(day, "ann", "", "find_tool"): {"answers": 1, "tokens": 10, "tokens_saved": 990}})
        usage.add({RowKey(day, "ann", "files", "read"): {"answers": 0, "calls": 1, "bytes": 12_345}})
        usage.put_size(day, CatalogueSize(1, 7, 6_543))

    as_json = json.loads(runner.invoke(app, ["savings", "7d", "--json"]).stdout)
    for_people = runner.invoke(app, ["savings"]).stdout
    before = runner.invoke(app, ["savings", "2020-01-01"]).stdout

    assert as_json["totals"]["tokens_saved"] == 990
    assert as_json["totals"]["net_tokens_saved"] == 930
    assert "net tokens saved, generic profile" in for_people
    assert "files:read" in for_people
    assert "Below 7 tools" in for_people
    assert as_json["catalogue"] == [{"day": day.isoformat(), "servers": 1, "tools": 7, "tokens": 6_543}]
    assert "6,543" in for_people
    assert "12,345" in for_people
    assert "result bytes" in for_people
    assert "result bytes" not in before


def test_a_period_that_is_none_is_a_mistake_of_the_command() -> None:
    result = runner.invoke(app, ["savings", "sometime"])

    assert isinstance(result.exception, ServiceRejected)
    assert "expected today" in str(result.exception)
