"""`docs/clients.md` has the kept results, of the locked versions."""

from __future__ import annotations

import pytest

from tests.clients.__main__ import KEPT, PAGE
from tests.clients.libraries import LIBRARIES
from tests.clients.results import PlayedLibrary, PlayedServer, Results, render
from tests.clients.steps import STEPS
from tests.clients.third_party import THIRD_PARTY_SERVERS


@pytest.fixture(scope="module")
def results() -> Results:
    return Results.model_validate_json(KEPT.read_text(encoding="utf-8"))


def test_the_page_shows_the_kept_results(results: Results) -> None:
    assert PAGE.read_text(encoding="utf-8") == render(results)


def test_the_results_are_of_every_locked_library_and_every_step(results: Results) -> None:
    expected = [
        (library.package, library.version, transport, list(STEPS))
        for library in LIBRARIES
        for transport in library.transports
    ]

    assert [(each.package, each.version, each.transport, list(each.steps)) for each in results.libraries] == expected


def test_the_results_are_of_every_locked_server(results: Results) -> None:
    expected = [(server.package, server.version, server.tool) for server in THIRD_PARTY_SERVERS]

    assert [(each.package, each.version, each.called) for each in results.servers] == expected


def test_every_library_and_server_passed(results: Results) -> None:
    assert {outcome for library in results.libraries for outcome in library.steps.values()} <= {
        "yes",
        "not offered",
        "ignored",
    }
    assert all(server.tools and not server.error for server in results.servers)


def test_the_page_has_the_reason_of_a_failed_step_and_call() -> None:
    library = PlayedLibrary(
        name="SDK",
        package="sdk",
        version="1.0",
        transport="http",
        steps={"lists tools": "no"},
        errors={"lists tools": "no reply within 90 s"},
    )
    server = PlayedServer(name="clock", package="clock-server", version="2.0", tools=0, called="now", error="no tools")

    page = render(Results(made_at="2026-01-31", python="3.11", node="22", libraries=(library,), servers=(server,)))

    assert "| SDK: `sdk` | 1.0 | http | lists tools: no |" in page
    assert "SDK over http, lists tools: no reply within 90 s" in page
    assert "| `clock-server` | 2.0 | 0 | no tools |" in page
