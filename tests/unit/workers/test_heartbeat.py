from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.errors import ConfigInvalid
from workers.monitoring.heartbeat import Heartbeat


def test_the_file_is_touched_once_all_parts_have_done_their_work(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    heartbeat = Heartbeat(path, ["a", "b"])

    heartbeat.beat("a")
    heartbeat.beat("a")
    assert not path.exists()

    heartbeat.beat("b")
    assert path.exists()


def test_the_file_grows_old_when_one_part_stands_still(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    heartbeat = Heartbeat(path, ["a", "b"])
    for part in ("a", "b"):
        heartbeat.beat(part)
    os.utime(path, (1, 1))

    heartbeat.beat("b")

    assert path.stat().st_mtime == 1


def test_without_a_path_nothing_is_touched() -> None:
    Heartbeat(None, ["a"]).beat("a")


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="heartbeat"):
        Heartbeat(tmp_path / "missing" / "heartbeat", ["a"])
