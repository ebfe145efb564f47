"""Changed definitions word by word, and their acceptance on the page of their server."""

from __future__ import annotations

import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from query.catalogue import Catalogue
from query.listener import open_listener
from query.records import Ledger
from query.web.difference import MOST_WORDS, changed_parts, compared
from query.web.page import Means
from query.web.routes import page_routes
from shared.intents.definitions import ChangedDefinition, Definitions
from shared.intents.intents import Intents, open_intents
from shared.settings import load_settings
from tests.support.fakes import FakeEmbedder, make_tool
from tests.support.filled import index_of
from tests.support.http_callers import http_client

pytestmark = pytest.mark.anyio

WORDS = st.lists(st.sampled_from(["read", "a", "file", "now", " ", "\n", "."]), max_size=30).map("".join)
LEAF = st.none() | st.booleans() | st.integers() | WORDS
JSON = st.recursive(LEAF, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
DEFINITION = st.dictionaries(st.sampled_from(["description", "inputSchema", "title"]), JSON, max_size=3)


@given(before=WORDS | st.just("x " * MOST_WORDS), after=WORDS)
def test_the_pieces_are_both_texts(before: str, after: str) -> None:
    pieces = compared(before, after)

    assert "".join(piece.text for piece in pieces if piece.kind != "new") == before
    assert "".join(piece.text for piece in pieces if piece.kind != "gone") == after
    assert before != after or all(piece.kind == "same" for piece in pieces)


@given(before=DEFINITION, after=DEFINITION)
def test_a_part_that_is_shown_differs(before: Any, after: Any) -> None:
    assert changed_parts(before, before) == []
    for part in changed_parts(before, after):
        # a part that only one of them has, and which is empty, has no words
        assert not part.pieces or any(piece.kind != "same" for piece in part.pieces)


def test_a_changed_word_is_alone() -> None:
    before = {"inputSchema": {"properties": {"zone": {"description": "Use 'UTC' as the local zone"}}}, "name": "now"}
    after = {"inputSchema": {"properties": {"zone": {"description": "Use 'Tokyo' as the local zone"}}}, "name": "now"}

    (part,) = changed_parts(before, after)

    assert part.path == "inputSchema.properties.zone.description"
    assert [(piece.kind, piece.text) for piece in part.pieces if piece.kind != "same"] == [
        ("gone", "UTC"),
        ("new", "Tokyo"),
    ]


# --- the page ---


def site(intents: Intents, resyncs: list[str]) -> Starlette:
    index = index_of(make_tool("s", "t"), unaccepted=1)
    catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), intents=intents)
    with closing(open_listener(load_settings(port=0))) as listener:
        return Starlette(routes=page_routes(catalogue, listener, Means(resyncs.append)))


def change(digest: str, current: str) -> Definitions:
    changed = ChangedDefinition(
        digest=digest,
        since=time.time(),
        accepted='{"name": "t", "description": "Reads a file"}',
        current=f'{{"name": "t", "description": "{current}"}}',
    )
    return Definitions(server_id="s", accepted={"t": "old"}, changed={"t": changed}, held=True)


async def test_a_person_reads_the_changed_words_and_accepts_what_was_read(tmp_path: Path) -> None:
    resyncs: list[str] = []
    with closing(open_intents(load_settings(data_dir=tmp_path))) as intents:
        intents.update_definitions("s", lambda _: change("new", "Sends a file <b>"))
        async with http_client(site(intents, resyncs)) as http:
            page = (await http.get("/ui/servers/s")).text
            fields = dict(re.findall(r'name="(token|tool)" value="([^"]*)"', page))
            intents.update_definitions("s", lambda _: change("newest", "Deletes a file"))
            too_late = await http.post("/ui/accept/s", data=fields, headers={"origin": "http://127.0.0.1"})
            page = (await http.get("/ui/servers/s")).text
            fields = dict(re.findall(r'name="(token|tool)" value="([^"]*)"', page))
            accepted = await http.post("/ui/accept/s", data=fields, headers={"origin": "http://127.0.0.1"})
        left = intents.definitions("s")

    assert "<del>Reads</del>" in page
    assert "<ins>Deletes</ins>" in page
    assert "<b>" not in page
    assert too_late.status_code == 409
    assert accepted.status_code == 303
    assert left
    assert (left.changed, left.accepted) == ({}, {"t": "newest"})
    assert resyncs == ["s"]
