from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from query.auth.tokens import StaticTokens, read_tokens
from query.caller import USING, Caller
from shared.errors import AuthenticationFailed, ConfigInvalid
from shared.service.token_file import read_token_file
from tests.support.http_callers import entry, token_file
from toolscale.app import app
from workers.events_api.producers import ProducerRights

runner = CliRunner()


def test_a_token_that_the_command_printed_opens_what_its_entry_says(tmp_path: Path) -> None:
    arguments = ["token", "new", "ann-1", "--groups", "team-a, team-b", "--toolset", "daily", "--budget-tokens", "900"]
    printed = runner.invoke(app, [*arguments, "--days", "30"]).stdout
    token, _, table = printed.partition("\n")
    path = tmp_path / "tokens.toml"
    path.write_text(table, encoding="utf-8")

    caller = StaticTokens(path).caller(token)

    assert caller == Caller("ann-1", frozenset({"team-a", "team-b"}), USING, "daily", 900)
    assert token not in table


def test_two_tokens_are_never_the_same_and_one_may_be_for_reading_everything(tmp_path: Path) -> None:
    first, second = (
        runner.invoke(app, ["token", "new", name, *groups, "--read-only"]).stdout
        for name, groups in (("a", ["--all-groups"]), ("b", ["--groups", "*"]))
    )
    path = tmp_path / "tokens.toml"
    path.write_text("\n".join(text.partition("\n")[2] for text in (first, second)), encoding="utf-8")

    callers = [StaticTokens(path).caller(text.partition("\n")[0]) for text in (first, second)]

    assert callers == [Caller(name, None, frozenset({"catalog:read"})) for name in ("a", "b")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "--groups", " , "],
        ["a", "--groups", "ops,*"],
        ["a", "--groups", "no group of a server"],
        ["a b", "--all-groups"],
        ["jwt:a", "--all-groups"],
    ],
)
def test_a_token_for_nobody_or_for_nothing_is_not_made(arguments: list[str]) -> None:
    made = runner.invoke(app, ["token", "new", *arguments])

    assert isinstance(made.exception, ConfigInvalid)
    assert made.stdout == ""


@pytest.mark.parametrize("groups", ['"*"', '["*"]'])
def test_an_asterisk_means_all_groups_in_both_files(tmp_path: Path, groups: str) -> None:
    path, table = tmp_path / "t", f'[a]\nsha256 = "{"0" * 64}"\ngroups = {groups}\n'

    path.write_text(table + 'permissions = ["catalog:read"]')
    (caller,) = read_tokens(path).values()
    path.write_text(table + 'id_prefixes = ["a"]\nhosts = ["b"]')
    (producer,) = read_token_file(path, ProducerRights).values()

    assert caller.caller("a").groups is None
    assert producer.groups == "*"


def test_a_caller_is_told_apart_by_its_token(tmp_path: Path) -> None:
    tokens = StaticTokens(token_file(tmp_path / "t", a=entry("one", ["x"]), b=entry("two", ["y"])))

    assert tokens.caller("two") == Caller("b", frozenset({"y"}))
    assert tokens.caller("three") is None
    assert tokens.caller("") is None


@pytest.mark.parametrize("written", ["t", "t.new"], ids=["in place", "as another file in its place"])
def test_a_token_that_is_taken_out_of_the_file_opens_nothing_any_more(tmp_path: Path, written: str) -> None:
    path = token_file(tmp_path / "t", a=entry("one"), b=entry("two"))
    tokens = StaticTokens(path)
    assert tokens.caller("two")

    token_file(tmp_path / written, a=entry("one")).replace(path)

    assert tokens.caller("two") is None
    assert tokens.caller("one")


@pytest.mark.parametrize("damage", ["[a", None])
def test_a_file_that_breaks_while_we_run_changes_nothing_and_is_said_once(tmp_path: Path, damage: str | None) -> None:
    path = token_file(tmp_path / "t", a=entry("one"))
    tokens = StaticTokens(path)
    path.unlink()
    if damage:
        path.write_text(damage, encoding="utf-8")

    with structlog.testing.capture_logs() as lines:
        found = [tokens.caller("one"), tokens.caller("one")]

    assert found == [Caller("a")] * 2
    assert [line["event"] for line in lines] == ["access_file_not_read"]


def test_a_token_is_refused_from_the_second_it_expires(tmp_path: Path) -> None:
    expires_at = datetime(2026, 1, 1, tzinfo=UTC)
    path = token_file(tmp_path / "t", a=entry("one", expires_at=expires_at))

    assert StaticTokens(path, lambda: expires_at.timestamp() - 1).caller("one")
    with pytest.raises(AuthenticationFailed, match="the token of a has expired"):
        StaticTokens(path, expires_at.timestamp).caller("one")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[a]\ntoken = "secret"\n', "a"),
        ('[a]\nsha256 = "secret"\ngroups = ["x"]\npermissions = []\n', "a.sha256"),
        (f'[a]\nsha256 = "{"0" * 64}"\npermissions = []\n', "a.groups"),
        (f'[a]\nsha256 = "{"0" * 64}"\ngroups = "secret"\npermissions = []\n', "a.groups"),
        (f'[a]\nsha256 = "{"0" * 64}"\ngroups = ["x"]\n', "a.permissions"),
        (f'[a]\nsha256 = "{"0" * 64}"\ngroups = ["x"]\npermissions = ["secret"]\n', "a.permissions"),
        (f'[a]\nsha256 = "{"0" * 64}"\ngroups = ["x"]\npermissions = []\nbudget_tokens = 0\n', "a.budget_tokens"),
        ('["a b"]\n', "a b"),
        ("secret", "TOML"),
        ("", "cannot be read"),  # there is no file
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_the_place_and_never_quoted(
    tmp_path: Path, text: str, named: str
) -> None:
    path = tmp_path / "t"
    if text:
        path.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigInvalid) as refused:
        read_tokens(path)

    assert named in str(refused.value)
    assert "secret" not in str(refused.value)


def test_one_token_for_two_callers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="a and b have the same token"):
        read_tokens(token_file(tmp_path / "t", a=entry("one"), b=entry("one")))
