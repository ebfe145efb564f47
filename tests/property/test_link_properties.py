"""A link opens for the caller that received it alone, and only to the URI of the server that it was sealed with."""

from __future__ import annotations

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mcp.types import ResourceLink
from pydantic import AnyUrl

from query.cursors import own_cursors
from query.paging.links import PREFIX, Link, Links, added_text
from shared.errors import ResourceNotFound

CURSORS = own_cursors()
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
tools = st.builds("{}:{}".format, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,20}", fullmatch=True), names)
schemes = st.sampled_from(["file:", "db:", "urn:", "ui:", "toolscale:", "custom+x:"])
parts = st.sampled_from(["/", "..", ".", "//", "%2F", "%", "?", "#", "é", " ", "\\", "a", "{id}"]) | names
uris = st.builds("{}{}".format, schemes, st.lists(parts, max_size=8).map("".join))
links = st.builds(Link, tools, uris)


@given(names, links)
@example("ann", Link("files:open", "file:///a/../b/./c"))
@example("ann", Link("files:open", "file:/.//"))
def test_a_link_opens_for_its_caller_as_it_is_and_as_a_client_normalizes_it(caller: str, link: Link) -> None:
    opened = Links(caller, CURSORS)
    sealed = opened.seal(link)

    assert sealed.isascii()
    assert sealed.startswith(PREFIX)
    assert opened.open(sealed) == link
    assert opened.open(str(AnyUrl(sealed))) == link


@given(names, names, links)
def test_a_link_does_not_open_for_another_caller(caller: str, other: str, link: Link) -> None:
    assume(caller != other)

    with pytest.raises(ResourceNotFound):
        Links(other, CURSORS).open(Links(caller, CURSORS).seal(link))


@given(links, links, st.data())
def test_a_changed_link_opens_to_nothing_else(link: Link, other: Link, data: st.DataObject) -> None:
    opened = Links("ann", CURSORS)
    sealed, second = opened.seal(link), opened.seal(other)
    start = data.draw(st.integers(0, len(sealed)))
    end = data.draw(st.integers(start, len(sealed)))
    changed = sealed[:start] + data.draw(st.text(string.printable, max_size=3) | st.just(second[start:])) + sealed[end:]

    try:
        found = opened.open(changed)
    except ResourceNotFound:
        return
    # an escape may be written in several ways, so another text may be the same link
    assert found in (link, other)


@given(st.text(max_size=100) | st.text(max_size=100).map(PREFIX.__add__))
def test_a_text_that_was_never_sealed_does_not_open(text: str) -> None:
    with pytest.raises(ResourceNotFound):
        Links("ann", CURSORS).open(text)


@given(links)
def test_the_text_that_toolscale_added_to_a_link_is_all_but_the_uri(link: Link) -> None:
    sealed = Links("ann", CURSORS).seal(link)

    added = added_text(ResourceLink(name="x", uri=sealed))

    assert sealed.startswith(added)
    assert added.count("/") == 5
    assert added.endswith("/")
