"""What a server that turns hostile does to the catalogue: nothing, but a mark that its tools are stale."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import structlog

from shared.catalog import Listing, Scope, ServerRecord, digest
from shared.errors import (
    ListingTooLarge,
    ServerError,
    ServerFailed,
    ServerTimeout,
    ServerUnreachable,
)
from shared.intents.intent import Intent
from shared.upstream.target import HttpTarget
from tests.support.builders import changed, up, write_path
from tests.support.fakes import DIMENSION
from tests.support.hostile import scripts
from tests.support.hostile.messages import endless, one_page, tool
from tests.support.hostile.scripted_http import Exchange, ScriptedServer, scripted_http
from tests.support.indexes import open_edge
from tests.support.present import present
from workers.dependencies import Dependencies
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking
from workers.ingest import reconcile

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=60, max_tools=5_000, max_pages=20, max_message_bytes=1 << 20, max_tool_bytes=65_536)
IMPATIENT = replace(LIMITS, timeout_s=2)

HOSTILE: dict[str, tuple[Callable[[Exchange], None], type[ServerError]]] = {
    "500": (scripts.status(500), ServerFailed),
    "a hang": (scripts.on_tools_list(scripts.hangs), ServerTimeout),
    "endless pages": (scripts.plays(endless), ListingTooLarge),
    "half a list": (scripts.dies_in_mid_list, ServerUnreachable),
}


@dataclass(frozen=True)
class Fleet:
    """Two servers on loopback, `turning` and `neighbour`, ingested into a real index."""

    deps: Dependencies
    servers: dict[str, ScriptedServer]

    def reconcile(self, server_id: str, limits: Limits = LIMITS) -> None:
        self.deps.intents.record(changed(server_id), due_in_s=60)
        reconcile(server_id, replace(self.deps, list_server=partial(self.listing, limits=limits)))

    def listing(self, intent: Intent, limits: Limits) -> Listing:
        return fetch_tools_blocking(intent.server_id, HttpTarget(self.servers[intent.server_id].url), limits)

    def found(self) -> set[str]:
        return {indexed.qualified_name for indexed in self.deps.index.tools(Scope(), limit=100).tools}

    def record(self, server_id: str) -> ServerRecord:
        return present(self.deps.index.server(server_id))


@pytest.fixture
def fleet(tmp_path: Path) -> Generator[Fleet]:
    good = scripts.plays(one_page(tool("first"), tool("second")))
    with (
        scripted_http(good) as turning,
        scripted_http(good) as neighbour,
        closing(open_edge(tmp_path, "tools", DIMENSION)) as index,
    ):
        deps = replace(write_path(tmp_path).deps, index=index)
        fleet = Fleet(deps, {"turning": turning, "neighbour": neighbour})
        for server_id, server in fleet.servers.items():
            deps.intents.record(up(server_id, url=server.url), due_in_s=60)
            fleet.reconcile(server_id)
        yield fleet


EVERYTHING = {"turning:first", "turning:second", "neighbour:first", "neighbour:second"}


@pytest.mark.parametrize("what", HOSTILE)
def test_the_last_good_tools_stay_marked_stale_and_the_neighbour_is_untouched(fleet: Fleet, what: str) -> None:
    fleet.servers["turning"].respond, expected = HOSTILE[what]

    with pytest.raises(expected, match=r"^turning: "):
        fleet.reconcile("turning", IMPATIENT if expected is ServerTimeout else LIMITS)
    fleet.reconcile("neighbour")

    assert fleet.found() == EVERYTHING
    assert fleet.record("turning").stale_since is not None
    assert str(fleet.record("turning").last_error).startswith("turning: ")
    assert fleet.record("neighbour").stale_since is None


def test_an_invisible_text_is_stored_with_marks_and_its_tool_is_named(fleet: Fleet) -> None:
    hidden = tool("hiding") | {"description": "Read a file.\u202e\U000e0041\x1b[8m"}
    fleet.servers["turning"].respond = scripts.plays(one_page(tool("first"), hidden))

    with structlog.testing.capture_logs() as logs:
        fleet.reconcile("turning")

    (stored,) = fleet.deps.index.find_by_name("turning:hiding", Scope(), 2)
    assert stored.definition.description == "Read a file.\ufffd[8m"
    assert stored.digest == digest(stored.definition, fleet.record("turning").declared_name)
    assert stored.token_counts["cl100k_base"] == fleet.deps.counters["cl100k_base"](stored.definition.wire)
    assert fleet.record("turning").marked == ("hiding",)
    assert [line["tools"] for line in logs if line["event"] == "invisible_definitions"] == [("hiding",)]


def test_a_malformed_tool_is_left_out_and_named_and_its_siblings_are_renewed(fleet: Fleet) -> None:
    broken: dict[str, object] = {"name": "broken", "inputSchema": []}
    fleet.servers["turning"].respond = scripts.plays(one_page(tool("first"), broken, tool("third")))

    fleet.reconcile("turning")

    assert fleet.found() == (EVERYTHING - {"turning:second"}) | {"turning:third"}
    assert [rejected.name for rejected in fleet.record("turning").rejected] == ["broken"]
