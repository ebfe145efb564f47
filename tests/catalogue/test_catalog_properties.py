from __future__ import annotations

import uuid

from hypothesis import assume, given
from hypothesis import strategies as st

from shared.catalog import catalog_digest, digest, point_id, server_half
from shared.text.tokens import estimate
from tests.support.builders import definition

names = st.text(min_size=1, max_size=20)


@given(names, names, names, names)
def test_different_pairs_of_server_and_tool_never_share_a_point(a: str, b: str, c: str, d: str) -> None:
    assume((a, b) != (c, d))

    assert point_id(a, b) != point_id(c, d)


@given(names, names)
def test_the_same_pair_always_has_the_same_valid_id(server: str, tool: str) -> None:
    point = uuid.UUID(point_id(server, tool))

    assert point_id(server, tool) == str(point)
    assert (point.version, point.variant) == (8, uuid.RFC_4122)


@given(names, names, names, names)
def test_two_points_share_their_first_half_if_they_are_tools_of_one_server(a: str, b: str, c: str, d: str) -> None:
    first, second = point_id(a, b), point_id(c, d)

    assert (server_half(first) == server_half(second)) == (a == c)
    # the same tool of another server has another second half too
    assert (first.removeprefix(server_half(first)) == second.removeprefix(server_half(second))) == ((a, b) == (c, d))


@given(names, names, names)
def test_a_digest_changes_with_the_description_and_the_declared_name_alone(name: str, first: str, second: str) -> None:
    assume(first != second)
    tool = definition("t", first)

    assert digest(tool, name) == digest(definition("t", first), name)
    assert digest(tool, name) != digest(definition("t", second), name)
    assert digest(tool, first) != digest(tool, second)


@given(st.dictionaries(names, names))
def test_a_catalogs_digest_does_not_depend_on_the_order_of_its_tools(digests: dict[str, str]) -> None:
    assert catalog_digest(digests) == catalog_digest(dict(reversed(digests.items())))


@given(st.text(max_size=300))
def test_more_text_never_has_a_smaller_estimate(text: str) -> None:
    assert estimate(text) <= estimate(text + " word")
