from __future__ import annotations

import pytest

from shared.amounts import ago, ahead, size


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 100_000.0)


@pytest.mark.parametrize(
    ("age_s", "shown"),
    [(0.9, "0 s"), (59.9, "59 s"), (60, "1 min"), (5_400, "1 h"), (86_399, "23 h"), (86_400, "1 d"), (99_999, "1 d")],
)
def test_an_age_is_in_whole_parts_of_its_largest_unit(age_s: float, shown: str) -> None:
    assert ago(100_000 - age_s) == f"{shown} ago"


def test_an_age_of_nothing_and_one_in_the_future_have_words() -> None:
    assert ago(None) == "never"
    assert ago(1e12) == "0 s ago"


def test_a_wait_is_in_its_largest_unit() -> None:
    waits = (-10, 40, 300, 7_400)

    assert [ahead(100_000.0 + wait_s) for wait_s in waits] == ["now", "in 40 s", "in 5 min", "in 2 h"]


@pytest.mark.parametrize(
    ("length", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (1 << 60, "1048576.0 TiB")],
)
def test_a_size_is_in_its_unit(length: int, shown: str) -> None:
    assert size(length) == shown
