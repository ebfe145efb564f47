"""Every HTTP listener of the product has the limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.service.bodies import BUDGET_BYTES, SMALL_BYTES, BodyBudget
from shared.service.http_server import HttpLimits
from shared.service.open_files import MAX_CALLERS

ROOT = Path(__file__).parents[3]


def _modules_with(text: str) -> Iterator[str]:
    for package in ("query", "shared", "toolscale", "workers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if text in path.read_text(encoding="utf-8"):
                yield path.relative_to(ROOT).as_posix()


def test_no_server_is_configured_without_the_limits() -> None:
    assert list(_modules_with("(uvicorn.Config)")) == ["shared/service/http_server.py"]
    assert list(_modules_with("uvicorn.Config(")) == []
    assert list(_modules_with("HttpConfig(")) == [
        "query/server/http.py",
        "shared/service/http_server.py",
        "toolscale/embedded/starting.py",
        "workers/events_api/app.py",
        "workers/monitoring/routes.py",
    ]


def test_the_limits_are_those_of_the_documentation() -> None:
    limits = HttpLimits()

    assert limits.connections <= MAX_CALLERS == 2_048
    assert (limits.request_within_s, limits.read_within_s, limits.body_within_s) == (10.0, 30.0, 10.0)
    assert limits.bodies_bytes == BUDGET_BYTES == 64 << 20
    assert SMALL_BYTES == 64 << 10


@pytest.mark.parametrize("holders", [1, 2, 5])
def test_a_released_body_leaves_nothing_in_the_budget(holders: int) -> None:
    budget = BodyBudget(100)
    taken = [holder for holder in map(str, range(holders)) if budget.take(holder, 50)]

    assert len(taken) == min(holders, 2)
    assert not budget.take("0", 1)
    for holder in taken:
        budget.release(holder, 50)
    assert budget.held_bytes == 0
    assert budget.take("0", 50)
