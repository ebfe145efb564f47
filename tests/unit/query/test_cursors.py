from __future__ import annotations

import stat
from pathlib import Path

import pytest
import structlog

from query.cursors import Cursors, open_cursors
from query.cursors.keys import KEY_FILE, cursor_keys
from query.cursors.sealing import KEY_BYTES, Sealer
from query.cursors.store import MemoryStore
from shared.errors import ConfigInvalid, CursorInvalid
from shared.settings import load_settings

NEW, OLD = "n" * 32, "o" * 32
REDIS = "redis://127.0.0.1:1/0"  # nobody is asked: a cursor that is not long needs no store


def of_process(directory: Path, **settings: object) -> Cursors:
    """Return the cursors that a process has which is started with these settings."""
    return open_cursors(load_settings(data_dir=directory, **settings))


def test_an_expired_cursor_is_refused_and_says_so() -> None:
    now = 1_000.0
    sealer = Sealer([bytes(KEY_BYTES)], ttl_s=10, clock_s=lambda: now)
    cursor = sealer.seal(b"state")
    assert sealer.unseal(cursor) == b"state"

    now = 1_010.0

    with pytest.raises(CursorInvalid, match="expired"):
        sealer.unseal(cursor)


def test_with_one_key_every_replica_opens_the_others_cursors(tmp_path: Path) -> None:
    first, second = (of_process(tmp_path / name, cursor_key=NEW, redis_url=REDIS) for name in "ab")

    assert second.unseal(first.seal(b"state")) == b"state"


def test_a_key_can_be_exchanged_while_cursors_are_out(tmp_path: Path) -> None:
    before = of_process(tmp_path, cursor_key=OLD)
    between = of_process(tmp_path, cursor_key=f"{NEW},{OLD}")
    after = of_process(tmp_path, cursor_key=NEW)

    assert between.unseal(before.seal(b"state")) == b"state"
    assert after.unseal(between.seal(b"state")) == b"state"
    with pytest.raises(CursorInvalid):
        after.unseal(before.seal(b"state"))


def test_without_a_key_the_embedded_composition_keeps_one_that_outlives_it(tmp_path: Path) -> None:
    cursor = of_process(tmp_path).seal(b"state")

    assert of_process(tmp_path).unseal(cursor) == b"state"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


def test_without_a_key_the_scaled_composition_logs_that_replicas_cannot_share_cursors(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        cursor = of_process(tmp_path, redis_url=REDIS).seal(b"state")

    assert [(line["event"], line["log_level"]) for line in lines] == [("cursor_key_missing", "info")]
    with pytest.raises(CursorInvalid):
        of_process(tmp_path, redis_url=REDIS).unseal(cursor)


def test_a_key_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).mkdir()

    with pytest.raises(ConfigInvalid, match=KEY_FILE):
        cursor_keys(load_settings(data_dir=tmp_path))


@pytest.mark.parametrize("key", ["short", f"{NEW},short", f"{NEW},", f"{NEW} with blanks"])
def test_a_key_that_could_be_guessed_or_mistyped_is_refused(key: str) -> None:
    with pytest.raises(ConfigInvalid, match="cursor_key") as refused:
        load_settings(cursor_key=key)

    assert key not in str(refused.value)


def test_a_cursor_of_another_version_is_refused(tmp_path: Path) -> None:
    cursors = of_process(tmp_path)

    with pytest.raises(CursorInvalid):
        cursors.unseal(cursors.sealer.seal(b"\x07state"))


def test_a_long_state_stays_out_of_the_cursor(tmp_path: Path) -> None:
    cursors = of_process(tmp_path)

    cursor = cursors.seal(b"s" * 10_000)

    assert len(cursor) < 60
    assert cursors.unseal(cursor) == b"s" * 10_000


def test_what_nobody_reads_for_long_goes_and_what_is_read_stays() -> None:
    now = 0.0
    store = MemoryStore(ttl_s=10, max_bytes=100, clock_s=lambda: now)
    read, unread = store.put(b"read"), store.put(b"unread")

    now = 6.0
    store.get(read)
    now = 12.0

    assert store.get(read) == b"read"
    with pytest.raises(CursorInvalid):
        store.get(unread)
