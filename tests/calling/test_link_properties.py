"""A link opens for the caller that received it alone, and only to a URI of the result that it was in."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mcp.types import ResourceLink
from pydantic import AnyUrl

from query.answers.links import PREFIX, UNKNOWN, Link, Links, added_text
from query.kept import Kept
from shared.errors import ResourceNotFound

KEPT = Kept()
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
tools = st.builds("{}:{}".format, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/@-]{0,20}", fullmatch=True), names)
schemes = st.sampled_from(["file:", "db:", "urn:", "ui:", "toolscale:", "custom+x:"])
parts = st.sampled_from(["/", "..", ".", "//", "%2F", "%", "?", "#", "é", " ", "\\", "a", "{id}"]) | names
uris = st.builds("{}{}".format, schemes, st.lists(parts, max_size=8).map("".join))
links = st.builds(Link, tools, uris)


def shown(link: Link, caller: str = "ann") -> str:
    """Return the URI that a caller sees of a result with this one link."""
    return Links(caller, KEPT).to([link.uri], link.tool)[link.uri]


@given(names, links)
@example("ann", Link("files:open", "file:///a/../b/./c"))
@example("ann", Link("files:open", "file:/.//"))
def test_a_link_opens_for_its_caller_as_it_is_and_as_a_client_normalizes_it(caller: str, link: Link) -> None:
    opened = Links(caller, KEPT)
    uri = shown(link, caller)

    assert uri.isascii()
    assert uri.startswith(PREFIX)
    assert opened.open(uri) == link
    assert opened.open(str(AnyUrl(uri))) == link


@given(names, names, links)
def test_a_link_does_not_open_for_another_caller(caller: str, other: str, link: Link) -> None:
    assume(caller != other)

    with pytest.raises(ResourceNotFound):
        Links(other, KEPT).open(shown(link, caller))


@given(links, links, st.data())
def test_a_changed_link_opens_to_nothing_else(link: Link, other: Link, data: st.DataObject) -> None:
    first, second = shown(link), shown(other)
    start = data.draw(st.integers(0, len(first)))
    end = data.draw(st.integers(start, len(first)))
    changed = first[:start] + data.draw(st.text(string.printable, max_size=3) | st.just(second[start:])) + first[end:]

    try:
        found = Links("ann", KEPT).open(changed)
    except ResourceNotFound:
        return
    # an escape may be written in several ways, so another text may be the same link
    assert found in (link, other)


@given(tools, st.lists(uris, min_size=1, max_size=5, unique=True), uris)
def test_the_links_of_one_result_have_one_name_which_opens_no_other_uri(tool: str, own: list[str], other: str) -> None:
    assume(other not in own)
    links = Links("ann", KEPT).to(own, tool)

    (start,) = {added_text(ResourceLink(name="x", uri=uri)) for uri in links.values()}

    assert [Links("ann", KEPT).open(links[uri]) for uri in own] == [Link(tool, uri) for uri in own]
    with pytest.raises(ResourceNotFound, match=UNKNOWN):
        Links("ann", KEPT).open(start + quote(other, safe=""))


@given(st.text(max_size=100) | st.text(max_size=100).map(PREFIX.__add__))
def test_a_text_that_was_never_given_out_does_not_open(text: str) -> None:
    with pytest.raises(ResourceNotFound):
        Links("ann", KEPT).open(text)


@given(links)
def test_the_text_that_toolscale_added_to_a_link_is_all_but_the_uri(link: Link) -> None:
    uri = shown(link)

    added = added_text(ResourceLink(name="x", uri=uri))

    assert uri.startswith(added)
    assert added.count("/") == 4
    assert added.endswith("/")
