"""`toolscale doctor` finds problems and prints advice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import time_machine
from typer.testing import CliRunner

from shared.catalog import ENCODINGS, FEATURES_VERSION, Endpoint, ServerRecord
from shared.index import open_store
from shared.index.tools import EMBEDDED_MAX_ADVISED_TOOLS
from shared.index.versions import IndexVersion
from shared.intents.intents import open_intents
from shared.settings import REMOVED, Settings, load_settings
from shared.upstream.followed_config import FollowedConfig, followed_config_store
from shared.upstream.mcp_json import EntryProblem
from tests.support.builders import up, up_stdio
from tests.support.fakes import embedded, make_tool, unit_vector
from tests.support.ports import free_port
from toolscale.app import app
from toolscale.doctor import broker, installation, stores
from toolscale.doctor.installation import Finding, Level, misspelt_settings, ok, setting_names

Check = Callable[[Settings], Iterator[Finding]]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TOOLSCALE_PORT", str(free_port()))
    monkeypatch.setenv("REDIS_URL", "")


def findings(check: Check, **settings: object) -> list[Finding]:
    return list(check(load_settings(**settings)))


def levels(check: Check, **settings: object) -> list[Level]:
    return [finding.level for finding in findings(check, **settings)]


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_an_empty_directory_has_no_problem_and_ends_with_0() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])

    found = [Finding.model_validate(document) for document in json.loads(result.stdout)]
    assert result.exit_code == 0
    assert {finding.about for finding in found if finding.level == "ok"} >= {
        "settings",
        "index",
        "model",
        "vocabularies",
    }
    assert all(finding.advice for finding in found if finding.level != "ok")


def test_a_problem_ends_with_1_and_is_printed_with_advice(tmp_path: Path) -> None:
    write(tmp_path / "mcp.json", '{"mcpServers": {"s": {"command": "/no/such/program"}}}')

    result = CliRunner().invoke(app, ["doctor"])

    assert result.exit_code == 1
    assert "problem mcp.json        s: /no/such/program does not exist" in result.stdout
    assert "install it, or correct the path" in result.stdout


@pytest.mark.parametrize(
    ("command", "reason", "repair"),
    [
        ("mcp-gitt", "there is no program 'mcp-gitt' in its PATH", "did you mean mcp-git?"),
        ("mcp-git --repository x", "there is no program 'mcp-git --repository x'", "write 'mcp-git' as `command`"),
        ("DIRECTORY/mcp-gut", "DIRECTORY/mcp-gut is not executable", "run `chmod +x "),
    ],
)
def test_a_program_that_cannot_be_started_is_a_problem_with_its_repair(
    tmp_path: Path, command: str, reason: str, repair: str
) -> None:
    (tmp_path / "mcp-git").touch(0o755)
    (tmp_path / "mcp-gut").touch(0o644)
    command, reason = (text.replace("DIRECTORY", str(tmp_path)) for text in (command, reason))
    entry = {"command": command, "env": {"PATH": str(tmp_path)}}
    config = write(tmp_path / "x.json", json.dumps({"mcpServers": {"s": entry}}))

    _, found = installation.check_config(load_settings(mcp_config=config))

    assert (found.level, found.found) == ("problem", f"s: {reason}")
    assert found.advice.startswith(repair)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"mcpServers": {"s": {"command": "sh"}}}', ["ok"]),
        ('{"mcpServers": {"s": {}}}', ["ok", "problem"]),
        ("{", ["problem"]),
    ],
)
def test_an_mcp_json_is_read(tmp_path: Path, text: str, expected: list[Level]) -> None:
    assert levels(installation.check_config, mcp_config=write(tmp_path / "x.json", text)) == expected


def followed(path: Path, **state: Any) -> None:
    with closing(followed_config_store(load_settings())) as store:
        store.put(FollowedConfig(path=str(path), **state))


def test_the_file_that_a_process_follows_is_named_with_its_left_out_entries(tmp_path: Path) -> None:
    entries = {"good": {"command": "sh"}, "lost": {"command": "no-such-program"}, "bad": {"url": "${ONLY_THERE}"}}
    path = write(tmp_path / "x.json", json.dumps({"mcpServers": entries}))
    followed(path, servers=2, left_out=(EntryProblem(name="bad", reason="args: expected a list"),))

    found = findings(installation.check_config)

    assert [(finding.level, finding.found) for finding in found] == [
        ("ok", f"{path}: 2 usable servers; left out: 1; a Toolscale process follows it"),
        ("problem", "left out: bad: args: expected a list"),
        ("problem", "lost: there is no program 'no-such-program' in its PATH"),
    ]


def test_a_followed_file_that_is_broken_is_a_problem_and_no_file_is_none(tmp_path: Path) -> None:
    assert [finding.found for finding in findings(installation.check_config)] == [
        "no process follows one; servers come from events"
    ]

    followed(tmp_path / "gone.json", problem=f"{tmp_path}/gone.json: No such file or directory")

    (found,) = findings(installation.check_config)
    assert (found.level, "gone.json: No such file" in found.found) == ("problem", True)


def test_a_configured_file_is_checked_beside_another_that_is_followed(tmp_path: Path) -> None:
    followed(write(tmp_path / "a.json", '{"mcpServers": {}}'))
    configured = write(tmp_path / "b.json", '{"mcpServers": {"s": {}}}')

    found = findings(installation.check_config, mcp_config=configured)

    assert [finding.found.split(":")[0] for finding in found] == [str(tmp_path / "a.json"), str(configured), "s"]


def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_LOGLEVEL", "DEBUG")
    monkeypatch.setenv("TOOLSCALE_CREDENTIAL_DOCS", "a credential, no setting")

    assert [(finding.level, finding.advice) for finding in installation.check_names(os.environ)] == [
        ("problem", "did you mean TOOLSCALE_LOG_LEVEL?"),
    ]


def test_a_setting_of_an_earlier_release_is_named_with_what_is_true_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCALE_LEASE_S", "5")
    monkeypatch.setenv("TOOLSCALE_RETRY_MAX_S", "")  # as Compose passes what is not set

    (found,) = installation.check_names(os.environ)

    assert (found.level, found.found) == ("warning", "TOOLSCALE_LEASE_S has no effect any more")
    assert found.advice == "unset it: a dead worker's lease expires after 10 s"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOOLSCALE_TOKEN_ENCODNG", "TOOLSCALE_TOKEN_ENCODING"),
        ("TOOLSCALE_REDIS_ULR", "TOOLSCALE_REDIS_URL"),
        ("TOOLSCALE_MAX_RESPONSE_TOKENS", "TOOLSCALE_MCP_MAX_RESPONSE_TOKENS"),
        # Kubernetes names a service so
        ("TOOLSCALE_SERVICE_HOST", None),
    ],
)
def test_a_name_unlike_every_setting_has_no_suggestion(name: str, meant: str | None) -> None:
    assert misspelt_settings({name: "1", "TOOLSCALE_TOKEN": "t", "TOOLSCALE_PORT": "1", "PATH": ""}) == {name: meant}


def test_invalid_settings_are_all_reported_and_no_other_check_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOOLSCALE_PORT", "99999")
    monkeypatch.setenv("TOOLSCALE_LOG_LEVEL", "chatty")
    monkeypatch.setenv("TOOLSCALE_EVENTS_TOKEN", "short-secret")

    result = CliRunner().invoke(app, ["doctor", "--json"])

    (told,) = [Finding.model_validate(document) for document in json.loads(result.stdout)]
    assert result.exit_code == 1
    assert (told.about, told.level) == ("settings", "problem")
    assert all(name in told.found for name in ("port (TOOLSCALE_PORT)", "(TOOLSCALE_LOG_LEVEL)", "EVENTS_TOKEN"))
    assert "short-secret" not in result.output


def test_setting_names_contain_every_variable() -> None:
    names = setting_names()

    assert {"REDIS_URL", "TOOLSCALE_REDIS_URL", "MCP_RESPONSE_MODE", "TOOLSCALE_DATA_DIR"} <= names
    assert len(names) >= len(Settings.model_fields)
    assert not names & REMOVED.keys()


def test_redis_without_a_qdrant_server_is_unusual() -> None:
    assert levels(installation.check_settings, redis_url="redis://127.0.0.1:1/0") == ["warning"]


@pytest.mark.parametrize(("mode", "expected"), [(0o600, []), (0o640, []), (0o644, ["warning"]), (0o620, ["problem"])])
def test_files_that_hold_secrets_are_not_for_everyone(tmp_path: Path, mode: int, expected: list[Level]) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    write(credentials / "docs", "secret", mode)

    assert levels(installation.check_permissions, credentials_dir=credentials) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (None, []),
        ({"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}, []),
        ({"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer 0123456789"}}, ["warning"]),
    ],
    ids=["no server", "a reference", "a credential"],
)
def test_a_file_without_a_secret_may_be_read_by_everyone(
    tmp_path: Path, entry: dict[str, object] | None, expected: list[Level]
) -> None:
    (tmp_path / "credentials").mkdir()
    given = {
        "mcp_config": write(tmp_path / "mcp.json", json.dumps({"mcpServers": {"docs": entry} if entry else {}}), 0o644),
        "tokens_file": write(tmp_path / "tokens.toml", "", 0o644),
        "credentials_dir": write(tmp_path / "credentials/.gitignore", "*", 0o644).parent,
    }

    assert levels(installation.check_permissions, **given) == expected


def test_services_need_no_data_directory_and_no_query_service_beside_them(tmp_path: Path) -> None:
    services = {"redis_url": "redis://127.0.0.1:1/0", "qdrant_url": "http://127.0.0.1:1"}

    assert levels(installation.check_data_dir, data_dir=write(tmp_path / "file", "") / "below", **services) == []
    assert levels(stores.check_service, **services) == []


def test_a_token_file_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    assert levels(installation.check_tokens, tokens_file=write(tmp_path / "t.toml", "[ann]\n")) == ["problem"]
    assert levels(installation.check_tokens, tokens_file=write(tmp_path / "t.toml", "")) == ["ok"]
    table = f'[ci]\nsha256 = "{"0" * 64}"\nid_prefixes = ["ci/"]\nhosts = ["h"]\n'
    assert levels(installation.check_producers, producers_file=write(tmp_path / "p.toml", "[ci]\n")) == ["problem"]
    assert levels(installation.check_producers, producers_file=tmp_path / "missing.toml") == ["problem"]
    assert levels(installation.check_producers, producers_file=write(tmp_path / "p.toml", "")) == ["warning"]
    assert levels(installation.check_producers, producers_file=write(tmp_path / "p.toml", table)) == ["ok"]


def test_a_policy_file_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    rule = '[[rules]]\naction = "deny"\n'
    assert levels(installation.check_policy) == []
    assert levels(installation.check_policy, policy_file=tmp_path / "missing.toml") == ["problem"]
    assert levels(installation.check_policy, policy_file=write(tmp_path / "p.toml", "[[rule]]\n")) == ["problem"]
    assert levels(installation.check_policy, policy_file=write(tmp_path / "p.toml", "")) == ["warning"]
    assert levels(installation.check_policy, policy_file=write(tmp_path / "p.toml", rule)) == ["ok"]
    # it has no secret
    assert levels(installation.check_permissions, policy_file=write(tmp_path / "p.toml", rule, 0o644)) == []
    assert levels(installation.check_permissions, policy_file=write(tmp_path / "p.toml", rule, 0o666)) == ["problem"]


def test_a_data_directory_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    assert levels(installation.check_data_dir, data_dir=write(tmp_path / "file", "") / "below") == ["problem"]
    assert levels(installation.check_data_dir, data_dir=tmp_path / "new") == ["ok"]


def test_overdue_and_failed_servers_and_dead_letters_are_reported() -> None:
    with closing(open_intents(load_settings(resync_interval_s=0))) as intents:
        intents.record(up("late"), due_in_s=-100)
        intents.record(up("failing"), due_in_s=60)
        intents.fail("failing", 1, "failing: no answer")
        intents.record(up_stdio("new"), due_in_s=60)
        intents.begin("new")
        intents.add_dead_letter("because", "body")

    assert [(finding.level, finding.found) for finding in findings(stores.check_intents)] == [
        ("ok", "3 announced"),
        ("ok", "1 installing: new"),
        ("warning", "1 failed: failing"),
        ("warning", "1 overdue for a reconciliation"),
        ("warning", "1 rejected in the last day"),
    ]


@pytest.mark.parametrize(
    ("tools", "expected"),
    [(EMBEDDED_MAX_ADVISED_TOOLS, ["ok"]), (EMBEDDED_MAX_ADVISED_TOOLS + 1, ["ok", "warning"])],
)
def test_a_large_embedded_index_is_advised_to_move_to_a_qdrant_server(tools: int, expected: list[Level]) -> None:
    settings = load_settings()
    version = IndexVersion(settings.embedding_model, 384)
    with closing(open_store(settings)) as store:
        store.ensure_active_version(version)
        store.mark_complete(is_filled=True)
        for revision, count in ((1, 1), (2, tools - 1)):
            store.index(version).put_server(
                ServerRecord(server_id=f"s{revision}", endpoint=Endpoint(), tool_count=count, revision=revision)
            )

    found = findings(stores.check_index)

    assert [finding.level for finding in found] == expected
    assert all("QDRANT_URL" in finding.advice for finding in found[1:])


@pytest.fixture
def counted_settings() -> Settings:
    """The settings of an index with two servers, of which the second has a reconciliation to come."""
    settings = load_settings()
    version = IndexVersion(settings.embedding_model, 384)
    with closing(open_store(settings)) as store, closing(open_intents(settings)) as intents:
        store.ensure_active_version(version)
        store.mark_complete(is_filled=True)
        for revision, server_id in ((1, "equal"), (2, "lagging")):
            store.index(version).upsert([embedded(make_tool(server_id, tokens=10), vector=unit_vector(0, 384))])
            store.index(version).put_server(counted_record(server_id, revision, tokens=10))
        intents.record(up("lagging"), due_in_s=60)
    return settings


def counted_record(server_id: str, revision: int, tokens: int) -> ServerRecord:
    return ServerRecord(
        server_id=server_id,
        endpoint=Endpoint(),
        tool_count=1,
        tokens=dict.fromkeys(ENCODINGS, tokens),
        model_tokens=dict.fromkeys(ENCODINGS, 10),
        features_version=FEATURES_VERSION,
        catalog_digest="any",
        last_listed_at=1.0,
        revision=revision,
    )


def put(settings: Settings, *records: ServerRecord) -> None:
    with closing(open_store(settings)) as store:
        for record in records:
            store.index(IndexVersion(settings.embedding_model, 384)).put_server(record)


def test_an_audit_compares_every_server_that_waits_for_no_reconciliation(counted_settings: Settings) -> None:
    (found,) = stores.check_counts(counted_settings)

    assert found == ok(
        "counts", "1 records equal the sums over their tools; 1 not compared, since they wait for a reconciliation"
    )


def test_a_record_that_differs_is_a_problem_for_each_encoding_and_form(counted_settings: Settings) -> None:
    put(counted_settings, counted_record("equal", 3, 10_010), counted_record("lagging", 4, 10_010))

    *wrong, last = stores.check_counts(counted_settings)

    assert [(finding.level, finding.found) for finding in wrong] == [
        (
            "problem",
            "equal: its record states 10,010 tokens of 1 tools, the index counts 10 tokens of 1 tools "
            f"({encoding}, wire form)",
        )
        for encoding in ENCODINGS
    ]
    assert all("counts the tools again" in finding.advice for finding in wrong)
    assert last.level == "ok"


def test_only_an_audit_reads_counts_and_a_difference_ends_with_1(counted_settings: Settings) -> None:
    put(counted_settings, counted_record("equal", 3, 10_010))

    quick, audited = (CliRunner().invoke(app, ["doctor", *options]) for options in ([], ["--audit"]))

    assert (quick.exit_code, audited.exit_code) == (0, 1)
    assert "counts" not in quick.stdout
    assert "problem counts" in audited.stdout


def test_an_index_that_a_process_uses_is_not_compared(counted_settings: Settings) -> None:
    with closing(open_store(counted_settings)):
        (found,) = stores.check_counts(counted_settings)

    assert (found.level, "counts_differ" in found.advice) == ("warning", True)


def test_an_index_that_does_not_answer_is_not_compared(counted_settings: Settings) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert levels(stores.check_counts, qdrant_url=url) == ["problem"]


def test_there_is_nothing_to_compare_without_an_index() -> None:
    assert levels(stores.check_counts) == []


def test_a_service_that_is_not_there_is_no_problem_by_itself() -> None:
    assert levels(stores.check_service) == ["warning"]


def test_a_model_that_is_not_there_is_a_problem() -> None:
    assert levels(installation.check_model, embedding_model="no/such-model") == ["problem"]


def test_a_redis_that_does_not_answer_is_a_problem() -> None:
    assert levels(broker.check_redis, redis_url=f"redis://127.0.0.1:{free_port()}/0") == ["problem"]


@pytest.mark.redis
def test_a_redis_that_rejects_the_credentials_differs_from_an_unreachable_one(own_redis_url: str) -> None:
    with redis.Redis.from_url(own_redis_url) as client:
        client.config_set("requirepass", "right")

    wrong = [own_redis_url, own_redis_url.replace("//", "//:wrong@")]
    told = [finding for url in wrong for finding in findings(broker.check_redis, redis_url=url)]

    assert [finding.level for finding in told] == ["problem", "problem"]
    assert all(finding.found.endswith("rejects the credentials") and "password" in finding.advice for finding in told)
    assert "wrong" not in str(told)
    assert levels(broker.check_redis, redis_url=own_redis_url.replace("//", "//:right@"))[0] == "ok"


@pytest.mark.redis
def test_that_no_worker_answers_is_a_problem(own_redis_url: str) -> None:
    assert levels(broker.check_workers, redis_url=own_redis_url) == ["problem"]
    assert levels(broker.check_workers, redis_url=f"redis://127.0.0.1:{free_port()}/0") == []


@pytest.mark.redis
def test_a_redis_that_persists_its_data_is_ok_and_another_is_a_problem(own_redis_url: str) -> None:
    def about_redis() -> list[tuple[str, Level]]:
        return [(finding.about, finding.level) for finding in findings(broker.check_redis, redis_url=own_redis_url)]

    well = about_redis()
    with redis.Redis.from_url(own_redis_url) as client:
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "allkeys-lru")

    assert well == [("Redis", "ok"), ("clock", "ok")]
    assert about_redis() == [("Redis", "ok"), ("Redis", "problem"), ("Redis", "problem"), ("clock", "ok")]


@pytest.mark.redis
def test_a_clock_that_differs_from_redis_is_reported(redis_url: str) -> None:
    with time_machine.travel(datetime.now(UTC) + timedelta(seconds=120)):
        clock = findings(broker.check_redis, redis_url=redis_url)[-1]

    assert (clock.about, clock.level) == ("clock", "warning")
    assert clock.found.startswith(("119.", "120."))
