"""The dashboard's panels lie beside each other, and follow its variables."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.support.monitoring import DASHBOARD, panels, targets


def test_every_panel_follows_the_variables_of_job_and_instance() -> None:
    variables = json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]

    for target in targets():
        expression = target["expr"]
        assert expression.count("toolscale_") == expression.count('job=~"$job", instance=~"$instance"}'), expression
    assert [variable["name"] for variable in variables] == ["job", "instance"]
    for variable in variables:
        assert variable["query"]["query"].endswith(f", {variable['name']})")
        assert (variable["includeAll"], variable["multi"], variable["allValue"]) == (True, True, ".*")


def test_the_panels_have_titles_of_their_own_and_do_not_overlap() -> None:
    titles = [panel["title"] for panel in panels()]
    cells = [cell for panel in panels() for cell in _cells(panel["gridPos"])]

    assert len(set(titles)) == len(titles)
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def _cells(at: dict[str, int]) -> Iterator[tuple[int, int]]:
    return ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"]))
