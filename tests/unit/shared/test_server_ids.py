from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from shared.index import server_ids
from shared.index.points import Payload, PointCollection
from shared.index.server_ids import ServerIdsOfPoints


class Read:
    """A collection of points `a1`, `a2`, `b1`, …, each of the server in its id; `asked` lists what was read."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def retrieve(self, ids: Sequence[str], keys: Sequence[str] | None = None) -> dict[str, Payload]:
        self.asked.append(list(ids))
        assert keys == ("server_id",)
        return {point: {"server_id": point[0]} for point in ids if point != "gone"}


def test_each_point_is_read_once_and_one_that_is_gone_is_left_out() -> None:
    read = Read()
    known = ServerIdsOfPoints(cast("PointCollection", read))

    first = known.of(["a1", "b1", "a1", "gone"])
    second = known.of(["b1", "b2"])

    assert (first, second) == ({"a1": "a", "b1": "b"}, {"b1": "b", "b2": "b"})
    assert read.asked == [["a1", "b1", "gone"], ["b2"]]


def test_no_more_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_ids, "MAX_REMEMBERED", 2)
    read = Read()
    known = ServerIdsOfPoints(cast("PointCollection", read))

    answers = [known.of([f"a{i}" for i in range(3)]) for _ in range(2)]

    assert answers[0] == answers[1] == {f"a{i}": "a" for i in range(3)}
    assert len(read.asked) == 2
