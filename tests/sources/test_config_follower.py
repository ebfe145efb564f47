from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from shared.errors import AddressForbidden, ConfigInvalid, EventInvalid, IntentsUnavailable
from shared.events import ServerEvent
from shared.intents.intent import Intent
from shared.intents.intents import Intents
from shared.intents.sqlite import SqliteStorage
from shared.intents.transitions import RetryPolicy
from shared.upstream.followed_config import FileFollowedConfig, FollowedConfig
from shared.upstream.mcp_json import ConfigFile, EntryProblem
from shared.upstream.target import HttpTarget, Target
from tests.support.builders import down, up
from tests.support.present import present
from workers.emit import Emitter
from workers.sources.mcp_json import ConfigFollower


class Followed:
    """A follower of a file, and what it emitted."""

    def __init__(self, path: Path, intents: Intents) -> None:
        self.path = path
        self.intents = intents
        self.emitted: list[tuple[str, str]] = []
        self.fails = False
        self.store = FileFollowedConfig(path.with_name("followed.json"))
        file = ConfigFile(path, {"HOME": "/h"})
        self.follower = ConfigFollower(file, intents, self.emit, self.store, recheck_s=0)

    def emit(self, event: ServerEvent) -> Intent:
        if self.fails:
            raise IntentsUnavailable("the store is down")
        self.emitted.append((event.type.rpartition(".")[2], event.data.server_id))
        return Emitter(self.intents, lambda _: None, 1.0).emit(event)

    def poll(self) -> list[tuple[str, str]]:
        """Return the events after a poll of the file."""
        self.emitted.clear()
        self.follower.poll()
        return sorted(self.emitted)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mcp.json"


@pytest.fixture
def followed(path: Path, tmp_path: Path) -> Generator[Followed]:
    with closing(Intents(SqliteStorage(tmp_path / "intents.sqlite3"), RetryPolicy(1.0, 4.0))) as intents:
        yield Followed(path, intents)


def replace(path: Path, text: str) -> None:
    """Write as editors do: another file, renamed over this one."""
    written = path.with_suffix(".new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def write(path: Path, **servers: dict[str, Any]) -> None:
    replace(path, json.dumps({"mcpServers": servers}))


def at(port: int, **more: Any) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{port}/mcp", **more}


def test_all_servers_are_announced_at_the_start_and_none_again_without_a_change(followed: Followed) -> None:
    write(followed.path, a=at(1), b=at(2))

    assert followed.poll() == [("up", "a"), ("up", "b")]
    assert followed.poll() == []


def test_only_changed_servers_are_announced_after_a_change(followed: Followed) -> None:
    write(followed.path, kept=at(1), moved=at(2), gone=at(3))
    followed.poll()

    write(followed.path, kept=at(1), moved=at(4), new=at(5))

    assert followed.poll() == [("down", "gone"), ("up", "moved"), ("up", "new")]
    assert [intent.status for intent in followed.intents.intents()] == ["stopped", "running", "running", "running"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (at(1, headers={"X": "1"}), at(1, headers={"X": "2"})),
        ({"command": "x", "args": ["1"]}, {"command": "x", "args": ["2"]}),
        ({"command": "x", "env": {"A": "1"}}, {"command": "x", "env": {"A": "2"}}),
        (at(1), at(1, excludeTools=["delete"])),
    ],
)
def test_a_server_with_a_changed_target_or_option_is_reconciled_again(
    followed: Followed, before: dict[str, Any], after: dict[str, Any]
) -> None:
    write(followed.path, s=before, t=at(2))
    followed.poll()

    write(followed.path, s=after, t=at(2))

    assert followed.poll() == [("up", "s")]


def test_a_server_restored_after_it_was_dropped_from_the_file_is_taken_down(followed: Followed) -> None:
    write(followed.path, a=at(1), b=at(2))
    followed.poll()
    restored = present(followed.intents.intent("b"))
    write(followed.path, a=at(1))
    followed.poll()

    followed.intents.insert_if_absent(restored.model_copy(update={"server_id": "c"}))

    assert followed.poll() == [("down", "c")]
    assert followed.poll() == []


def test_an_event_takes_no_server_of_the_file_down(followed: Followed) -> None:
    write(followed.path, a=at(1))
    followed.poll()

    with pytest.raises(EventInvalid, match=r"mcp\.json names the server 'a'"):
        Emitter(followed.intents, lambda _: None, 1.0).accept(down("a").model_dump(mode="json"))

    assert followed.poll() == []
    assert [(letter.reason[:14]) for letter in followed.intents.dead_letters(9)] == ["data.server_id"]


def test_the_file_takes_over_a_server_that_an_event_announced_first(followed: Followed) -> None:
    followed.intents.record(up("a", groups=["everyone"]), due_in_s=1)
    write(followed.path, a=at(1))

    assert followed.poll() == [("up", "a")]

    intent = present(followed.intents.intent("a"))
    assert (intent.announcement.url, intent.announcement.groups) == (at(1)["url"], frozenset())


def test_a_server_whose_intent_was_lost_is_announced_again_over_that_of_an_event(
    followed: Followed, tmp_path: Path
) -> None:
    write(followed.path, a=at(1))
    followed.poll()
    with sqlite3.connect(tmp_path / "intents.sqlite3") as db:
        db.execute("DELETE FROM intents")
    db.close()
    followed.intents.record(up("a", groups=["everyone"]), due_in_s=1)

    assert followed.poll() == [("up", "a")]
    assert followed.poll() == []


def test_a_server_that_the_file_stops_naming_is_free_for_events(followed: Followed) -> None:
    write(followed.path, a=at(1), b=at(2))
    followed.poll()
    write(followed.path, b=at(2))
    followed.poll()

    intent = Emitter(followed.intents, lambda _: None, 1.0).accept(up("a").model_dump(mode="json"))

    assert intent.status == "running"
    assert followed.poll() == []


@pytest.mark.parametrize("broken", ["", "{", '{"mcpServers": []}'])
def test_a_file_that_is_broken_for_a_moment_changes_nothing_and_is_reported_once(
    followed: Followed, broken: str
) -> None:
    write(followed.path, a=at(1))
    followed.poll()

    with capture_logs() as logs:
        replace(followed.path, broken)
        assert [followed.poll(), followed.poll()] == [[], []]
        write(followed.path, a=at(1), b=at(2))
        assert followed.poll() == [("up", "b")]

    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["config_reconcile_failed"]


def test_a_file_that_is_missing_is_reported_once_and_followed_when_it_comes(followed: Followed) -> None:
    with capture_logs() as logs:
        assert [followed.poll(), followed.poll()] == [[], []]
        write(followed.path, a=at(1))
        assert followed.poll() == [("up", "a")]

    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["config_reconcile_failed"]


def test_an_entry_that_cannot_be_used_is_left_as_it_is(followed: Followed) -> None:
    write(followed.path, a=at(1), b=at(2))
    followed.poll()

    with capture_logs() as logs:
        write(followed.path, a=at(1, headers={"X": "${NOT_SET}"}), b=at(2))
        assert followed.poll() == []

    assert [line["reason"] for line in logs] == ["a: the environment variable NOT_SET is not set"]


def test_a_metric_counts_the_left_out_entries_of_the_file_as_it_is_now(followed: Followed) -> None:
    counts: list[float | None] = []

    for document in ({"a": at(1), "b": {"comand": "x"}, "c": {}}, {"a": at(1), "b": {"comand": "x"}}, {"a": at(1)}):
        write(followed.path, **document)
        followed.poll()
        counts.append(REGISTRY.get_sample_value("toolscale_entries_left_out"))

    assert counts == [2, 1, 0]


def test_the_followed_file_and_its_left_out_entries_are_stored(followed: Followed) -> None:
    write(followed.path, a=at(1), b={"comand": "x"})
    followed.poll()

    left_out = EntryProblem(name="b", reason="there is no key 'comand'; did you mean 'command'?")
    usable = FollowedConfig(path=str(followed.path), servers=1, left_out=(left_out,))
    assert followed.store.get() == usable

    replace(followed.path, "{")
    followed.poll()

    broken = present(followed.store.get())
    assert broken.problem == f"{followed.path}: not JSON: line 1, column 2: unexpected end of input"
    assert broken.model_copy(update={"problem": None}) == usable

    write(followed.path, a=at(1))
    followed.poll()

    assert followed.store.get() == FollowedConfig(path=str(followed.path), servers=1)


def test_a_state_that_cannot_be_stored_does_not_stop_the_announcements(followed: Followed) -> None:
    followed.store = FileFollowedConfig(followed.path / "not a directory")
    file = ConfigFile(followed.path, {})
    followed.follower = ConfigFollower(file, followed.intents, followed.emit, followed.store)
    write(followed.path, a=at(1))

    with capture_logs() as logs:
        assert [followed.poll(), followed.poll()] == [[("up", "a")], []]

    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["followed_config_not_stored"]


def test_the_next_poll_announces_servers_that_could_not_be_recorded(followed: Followed) -> None:
    write(followed.path, a=at(1))
    followed.fails = True
    assert followed.poll() == []

    followed.fails = False

    assert followed.poll() == [("up", "a")]


def test_servers_of_other_sources_are_left_alone(followed: Followed) -> None:
    for event in (up("x"), up("y"), down("y"), up("a")):
        Emitter(followed.intents, lambda _: None, 1.0).emit(event)
    write(followed.path, a=at(1))

    assert followed.poll() == [("up", "a")]


def test_earlier_servers_of_the_file_are_known_from_the_intents(followed: Followed) -> None:
    write(followed.path, a=at(1), b=at(2))
    followed.poll()
    write(followed.path, a=at(1))

    restarted = Followed(followed.path, followed.intents)

    assert restarted.poll() == [("down", "b"), ("up", "a")]


def url(target: Target | None) -> str:
    assert isinstance(target, HttpTarget)
    return target.url


def test_the_next_poll_uses_the_changed_target_and_a_broken_file_leaves_the_last(path: Path) -> None:
    write(path, a=at(1), b=at(2), gone=at(3))
    get = partial(ConfigFile(path, os.environ).get)
    assert url(get("a")) == at(1)["url"]

    write(path, a=at(9), b=at(2, headers={"X": "${NOT_SET}"}))
    assert [url(get("a")), url(get("b")), get("gone")] == [at(9)["url"], at(2)["url"], None]

    replace(path, "{")
    assert url(get("a")) == at(9)["url"]


def test_a_server_whose_entry_was_never_valid_has_no_other_address(path: Path) -> None:
    write(path, a=at(1, headers={"X": "${NOT_SET}"}))

    with pytest.raises(AddressForbidden, match=r"mcp\.json names this server, but its entry is invalid"):
        ConfigFile(path, {}).get("a")


def test_an_entry_is_that_of_the_file_without_values_of_variables(path: Path) -> None:
    entry = at(1, headers={"X": "${HOME}"})
    write(path, a=entry, b=at(2, headers={"X": "${NOT_SET}"}))
    file = ConfigFile(path, {"HOME": "/h"})
    assert [file.entry(name) for name in ("a", "b", "c")] == [entry, None, None]

    replace(path, "{")
    assert file.entry("a") is None


def test_an_unusable_file_raises_each_time(path: Path) -> None:
    file = ConfigFile(path, {})

    for _ in range(2):
        with pytest.raises(ConfigInvalid, match=r"mcp\.json"):
            file.config()
