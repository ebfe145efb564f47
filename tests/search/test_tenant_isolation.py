"""A tenant's answers are the same bytes with and without the servers of another tenant, on Qdrant Edge."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from query.answers.answer import TOOL
from query.answers.budget import MIN_TOKENS
from query.caller import ANYONE
from query.catalogue import Catalogue
from query.find import find_tool
from query.kept import name_of
from query.records import Ledger
from query.search.request import FindRequest
from shared.catalog import IndexedTool, Scope, Selection
from shared.errors import BudgetTooSmall
from shared.index.tools import ToolIndex
from tests.support.fakes import DIMENSION, FakeEmbedder
from tests.support.indexes import open_edge
from tests.support.profiles import examples
from tests.support.replicated import put_server, tool

VERBS = ("read", "send", "search", "convert", "delete", "list")
OBJECTS = ("calendar", "file", "mail", "time", "invoice", "branch", "photo", "ticket")
OWN_SERVERS = ("files", "mail", "planner", "planner-2")
REQUESTS_AN_EXAMPLE = 24
PAGES = 2


def tools_of(seed: str, number: int) -> list[IndexedTool]:
    """Return tools whose names and descriptions draw from the words that all tenants use."""
    draw = random.Random(seed)
    words = [*VERBS, *OBJECTS]
    return [
        tool(f"{draw.choice(VERBS)}_{draw.choice(OBJECTS)}_{i}", " ".join(draw.choices(words, k=6)), 20 + i)
        for i in range(number)
    ]


def put_own(index: ToolIndex) -> None:
    for server_id in OWN_SERVERS:
        declared = server_id.removesuffix("-2")
        put_server(index, server_id, tools_of(declared, 25), declared, frozenset({"a"}))


def put_foreign(index: ToolIndex) -> None:
    """Write servers of another tenant: one word in each tool, a replica, a namesake, and a stopped server."""
    foreign = frozenset({"b"})
    put_server(index, "invoices", [tool(f"invoice_{i}", "invoice") for i in range(150)], "invoices", foreign)
    put_server(index, "files-b", tools_of("files", 25), "files", foreign)
    put_server(index, "a-mail", tools_of("other mail", 40), "mail", foreign)
    put_server(index, "photos", tools_of("photos", 40), "photos", foreign, status="stopped")
    put_server(index, "nowhere", tools_of("nowhere", 40), "nowhere")


def catalogue_of(index: ToolIndex) -> Catalogue:
    return Catalogue(index, FakeEmbedder(), Ledger(index), no_match_threshold=0.3)


@pytest.fixture(scope="module")
def catalogues() -> Iterator[tuple[Catalogue, Catalogue]]:
    """Yield a catalogue of one tenant, and of this tenant with another one."""
    with ExitStack() as opened:
        alone, shared = (
            open_edge(Path(opened.enter_context(tempfile.TemporaryDirectory())), "tools", DIMENSION) for _ in range(2)
        )
        opened.callback(alone.close)
        opened.callback(shared.close)
        put_foreign(shared)
        for index in (alone, shared):
            put_own(index)
        yield catalogue_of(alone), catalogue_of(shared)


def pages(request: dict[str, Any], allowed: Scope, catalogue: Catalogue) -> list[bytes]:
    """Return the bytes of the first pages of this search and of what their cursors name, or of its error."""
    sent: list[bytes] = []
    cursor = None
    for number in range(PAGES):
        page = FindRequest.model_validate(request | {"cursor": cursor})
        try:
            with patch("query.find.new_name", lambda number=number: name_of(str(number))):  # random otherwise
                response, _ = find_tool(page, allowed, catalogue)
        except BudgetTooSmall as error:
            return [*sent, str(error).encode()]
        sent.append(json.dumps(response.as_object()).encode())
        if (cursor := response.next_cursor) is None:
            break
        sent.append(catalogue.response_policy.kept.get(cursor, ANYONE.name, TOOL, page.question))
    return sent


questions = st.lists(st.sampled_from([*VERBS, *OBJECTS, "zebra", "flight"]), min_size=1, max_size=5).map(" ".join)
names = st.sampled_from(["files", "mail", "planner", "files-b", "invoices", "photos", "plannr"])


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    optional: dict[str, st.SearchStrategy[Any]] = {
        "limit": st.integers(1, 50),
        "detail": st.sampled_from(["full", "auto", "detailed", "summary"]),
        "servers": st.lists(names, max_size=2),
        "groups": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "exclude": st.lists(st.sampled_from(["files:read_file_0", "a-mail:send_mail_0", "invoice_1"]), max_size=2),
        "max_tokens": st.integers(MIN_TOKENS, 2_000),
    }
    described = questions | st.lists(questions, min_size=2, max_size=3) | st.sampled_from(["invoice_3", "zebra flight"])
    return draw(st.fixed_dictionaries({"tool_description": described}, optional=optional))


TENANT = frozenset({"a"})
SCOPES = (
    Scope(groups=TENANT),
    Scope(groups=TENANT, within=Selection(servers=frozenset({"files", "invoices"}))),
    Scope(groups=TENANT, within=Selection(servers=frozenset({"mail"}), tools=frozenset({"planner:send_mail_1"}))),
)


@settings(max_examples=examples(100))
# two tools with equal scores, where the engine's rounding differs between the catalogues
@example(asked=[{"tool_description": "ticket read convert flight branch"}], allowed=SCOPES[0])
@given(
    asked=st.lists(requests(), min_size=REQUESTS_AN_EXAMPLE, max_size=REQUESTS_AN_EXAMPLE),
    allowed=st.sampled_from(SCOPES),
)
def test_answers_have_the_same_bytes_with_and_without_another_tenant(
    catalogues: tuple[Catalogue, Catalogue], asked: Sequence[dict[str, Any]], allowed: Scope
) -> None:
    """Compare 2,400 requests in CI: tools, order, scores, nearest names, warnings, sums and cursors."""
    alone, shared = catalogues

    for request in asked:
        assert pages(request, allowed, shared) == pages(request, allowed, alone), request
