"""The stored state of the followed `mcp.json`, in a file and in Redis."""

from __future__ import annotations

import stat
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from shared.errors import FollowedConfigUnavailable
from shared.service.redis import connect
from shared.settings import load_settings
from shared.upstream.followed_config import (
    FILE_NAME,
    KEPT_S,
    KEY,
    FileFollowedConfig,
    FollowedConfig,
    FollowedConfigStore,
    RedisFollowedConfig,
    read_followed_config,
)
from shared.upstream.mcp_json import EntryProblem
from tests.support.fake_redis import FakeRedisServer

STATE = FollowedConfig(path="/mcp.json", servers=2, left_out=(EntryProblem(name="a: b", reason="missing"),))


@pytest.fixture(params=["file", "redis"])
def stored(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Generator[tuple[FollowedConfigStore, Callable[[str], object]]]:
    """Return a store, and a function that writes a text in its place."""
    if request.param == "file":
        path = tmp_path / FILE_NAME
        yield FileFollowedConfig(path), path.write_text
        return
    fake: FakeRedisServer = request.getfixturevalue("fake_redis")
    with closing(RedisFollowedConfig(fake.client())) as store:
        yield store, lambda text: fake.client().set(KEY, text)


def test_a_stored_state_is_returned_until_it_is_deleted(
    stored: tuple[FollowedConfigStore, Callable[[str], object]],
) -> None:
    store, _ = stored
    assert store.get() is None

    store.put(STATE)
    assert store.get() == STATE

    store.clear()
    store.clear()
    assert store.get() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"servers": "many"}'])
def test_an_unreadable_state_counts_as_none(
    stored: tuple[FollowedConfigStore, Callable[[str], object]], text: str
) -> None:
    store, write = stored
    write(text)

    assert store.get() is None


def test_the_state_of_a_killed_process_expires(tmp_path: Path, fake_redis: FakeRedisServer) -> None:
    now = [1_000.0]
    file = FileFollowedConfig(tmp_path / "state.json", lambda: now[0])
    file.put(STATE)
    RedisFollowedConfig(fake_redis.client()).put(STATE)

    now[0] += KEPT_S
    assert file.get() == STATE
    now[0] += 1
    assert file.get() is None
    assert KEPT_S - 60 < fake_redis.client().ttl(KEY) <= KEPT_S


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    FileFollowedConfig(path).put(STATE)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_a_store_that_fails_is_an_error_and_no_missing_state(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    file = FileFollowedConfig(tmp_path / "directory")
    unreachable = RedisFollowedConfig(connect("redis://127.0.0.1:1/0"))

    for store in (file, unreachable):
        with pytest.raises(FollowedConfigUnavailable):
            store.put(STATE)
        with pytest.raises(FollowedConfigUnavailable):
            store.get()
        with pytest.raises(FollowedConfigUnavailable):
            store.clear()


def test_without_redis_the_state_is_in_the_data_directory(tmp_path: Path) -> None:
    FileFollowedConfig(tmp_path / FILE_NAME).put(STATE)

    assert read_followed_config(load_settings(data_dir=tmp_path, redis_url=None)) == STATE
