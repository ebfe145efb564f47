"""Calls that a person tries on the page: the form of a schema, and the path of every other call."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.app import http_app
from query.catalogue import Catalogue, recorded
from query.listener import open_listener
from query.mcp import caller_of_request, service_of
from query.usage.usage import Usage, today
from query.web.form import MOST_FIELDS, PREFIX, ParameterInvalid, parameters_of, values_of
from query.web.routes import page_routes
from shared.settings import load_settings
from tests.support.calling import catalogue_of, tool_of, upstreams_to
from tests.support.hostile.processes import callable_target
from tests.support.http_callers import entry, http_client, static
from tests.support.policies import policy, rule

pytestmark = pytest.mark.anyio

ORIGIN = {"origin": "http://127.0.0.1"}
ECHO = "/ui/tools/s%3Aecho"

# --- the form ---

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=20)
VALUES: dict[str, tuple[dict[str, Any], st.SearchStrategy[Any]]] = {
    "text": ({"type": "string"}, TEXTS),
    "body": ({"type": ["string", "null"]}, TEXTS),
    "count": ({"type": "integer"}, st.integers(-(10**9), 10**9)),
    "ratio": ({"anyOf": [{"type": "number"}, {"type": "null"}]}, st.floats(allow_nan=False, allow_infinity=False)),
    "exact": ({"type": "boolean"}, st.booleans()),
    "unit": ({"enum": ["s", 1, None]}, st.sampled_from(["s", 1])),
    "items": ({"type": "array"}, st.lists(st.integers(), max_size=3)),
    "other": ({}, st.dictionaries(TEXTS, st.integers(), max_size=3)),
}
FILLED = st.fixed_dictionaries({}, optional={name: values for name, (_, values) in VALUES.items()})


@given(values=FILLED)
def test_what_a_person_fills_in_is_what_the_tool_gets(values: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {name: wanted for name, (wanted, _) in VALUES.items()}}
    form = {PREFIX + name: [value if name in ("text", "body") else json.dumps(value)] for name, value in values.items()}

    found = parameters_of(schema, form)

    assert values_of(found) == values


KEYS = ("properties", "required", "type", "enum", "anyOf", "description", "default", "x")
ANY = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
)


@given(schema=ANY)
def test_a_schema_of_any_form_has_a_form(schema: object) -> None:
    for parameter in parameters_of(schema):
        assert parameter.field == PREFIX + parameter.name


def test_required_fields_come_first_defaults_are_filled_in_and_the_form_is_bounded() -> None:
    properties = {f"p{number}": {"type": "integer", "default": number} for number in range(MOST_FIELDS * 2)}

    found = parameters_of({"properties": properties, "required": ["p7"]})

    assert (found[0].name, found[0].value, found[0].is_required) == ("p7", "7", True)
    assert len(found) == MOST_FIELDS


@pytest.mark.parametrize("text", ["many", "1 2", "[" * 100_000])
def test_a_value_that_cannot_be_read_is_named(text: str) -> None:
    found = parameters_of({"properties": {"count": {"type": "integer"}}}, {f"{PREFIX}count": [text]})

    with pytest.raises(ParameterInvalid, match="count"):
        values_of(found)


def test_an_empty_field_is_left_out_unless_it_is_a_required_text() -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "string"}, "c": {"type": "integer"}}

    assert values_of(parameters_of({"properties": properties, "required": ["b", "c"]}, {})) == {"b": ""}


# --- the call ---


class Person:
    """Someone who fills in the forms of a page."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def call(self, path: str, **fields: str) -> str:
        """Return the page after a call with these parameters."""
        return await self._send(path, await self.token(path), {PREFIX + name: text for name, text in fields.items()})

    async def answer(self, path: str, page: str, answer: str, **fields: str) -> str:
        """Return the page after an answer to the question of a page."""
        asked = re.search(r'<form class="problem".*?</form>', page, re.DOTALL)
        assert asked, page
        hidden = {name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', asked[0])}
        return await self._send(path, hidden.pop("token"), hidden | {"answer": answer} | fields)

    async def token(self, path: str) -> str:
        page = (await self.http.get(path)).text
        return str(re.findall(r'name="token" value="([^"]+)"', page)[-1])

    async def _send(self, path: str, token: str, fields: dict[str, str]) -> str:
        answer = await self.http.post(path, data={"token": token} | fields, headers=ORIGIN)
        return answer.text


def outcome(page: str) -> tuple[str, str]:
    """Return the kind of the outcome and its text."""
    found = re.search(r'<div class="(notice|problem)" role="status">.*?<pre[^>]*><code>(.*?)</code>', page, re.DOTALL)
    assert found, page
    return found[1], html.unescape(found[2])


@asynccontextmanager
async def serving(
    catalogue: Catalogue, bearer: str | None = None, tokens: Path | None = None, **callers: Any
) -> AsyncGenerator[Person]:
    """Yield a person on the page of a service that calls a real server `s`."""
    known = static(tokens, **{name: entry(name, **more) for name, more in callers.items()}) if tokens else None
    with callable_target("http") as target, closing(open_listener(load_settings(port=0), known)) as listener:
        server = service_of(catalogue, upstreams_to({"s": target}), caller_of_request)
        app = http_app(server, listener, index=catalogue.index, routes=page_routes(catalogue, listener))
        async with http_client(app, bearer) as http:
            yield Person(http)


def catalogue(rules: str = "") -> Catalogue:
    known = catalogue_of(
        [tool_of("s", "echo", words={"type": "string"}), tool_of("s", "asks", kinds={"type": "array"})]
    )
    return replace(known, read_policy=lambda: policy(rules))


@pytest.mark.process
async def test_a_call_shows_its_result_its_time_and_its_tokens_and_is_in_the_feed_and_the_history(usage: Usage) -> None:
    with recorded(catalogue(), usage) as known:
        async with serving(known) as person:
            page = await person.call(ECHO, words="grüße <b>")

    kind, text = outcome(page)
    assert kind == "notice"
    assert text.startswith("grüße <b> from ")
    assert re.search(r"\d+ ms: \d+ tokens", page)
    assert "<b>" not in page
    assert 'value="grüße &lt;b&gt;"' in page  # still in the form
    (call,) = known.last_calls.of(None)
    assert (call.caller, call.server, call.tool, call.outcome) == ("anyone", "s", "echo", "ok")
    assert "grüße" not in repr(call)
    rows = usage.rows(today(), today())
    assert {key.tool for key in rows} == {"echo"}  # a call, and no answer to an agent


@pytest.mark.process
async def test_a_call_with_invalid_parameters_is_refused_as_for_everyone() -> None:
    known = catalogue_of([tool_of("s", "echo", words={"type": "integer", "maximum": 5})])
    async with serving(known) as person:
        refused, unread = [outcome(await person.call(ECHO, words=text)) for text in ("99", "many")]

    assert refused[0] == unread[0] == "problem"
    assert "words" in refused[1]
    assert "words" in unread[1]
    assert [call.outcome for call in known.last_calls.of(None)] == ["ArgumentsInvalid"]  # the other was not sent


@pytest.mark.process
async def test_a_denied_call_is_denied_here_too() -> None:
    known = catalogue(rule("deny", tools=["echo"]))
    async with serving(known) as person:
        page = await person.call(ECHO, words="x")

    assert outcome(page)[0] == "problem"
    assert [call.outcome for call in known.last_calls.of(None)] == ["CallDenied"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "kind", "end"), [("accept", "notice", "ok"), ("decline", "problem", "CallNotConfirmed")]
)
async def test_a_call_that_the_policy_asks_about_waits_for_the_persons_answer(answer: str, kind: str, end: str) -> None:
    known = catalogue(rule("ask", tools=["echo"]))
    async with serving(known) as person:
        asked = await person.call(ECHO, words="x")
        waiting = [call.outcome for call in known.last_calls.of(None)]
        answered = await person.answer(ECHO, asked, answer)

    assert waiting == ["InputRequired"]
    assert outcome(answered)[0] == kind
    assert next(known.last_calls.of(None)).outcome == end


@pytest.mark.process
async def test_a_question_of_the_server_has_its_own_form() -> None:
    path = "/ui/tools/s%3Aasks"
    async with serving(catalogue()) as person:
        asked = await person.call(path, kinds='["form"]')
        answered = await person.answer(path, asked, "accept", **{f"{PREFIX}0.branch": "main"})

    assert f'name="{PREFIX}0.branch"' in asked
    assert "main" in outcome(answered)[1]


@pytest.mark.process
async def test_a_caller_without_the_permission_has_no_form_and_may_not_call(tmp_path: Path) -> None:
    known = catalogue()
    reader = {"permissions": ["catalog:read"]}
    async with serving(known, "ann", tmp_path / "t.toml", ann=reader) as person:
        shown = (await person.http.get(ECHO)).text
        answer = await person.http.post(ECHO, data={"token": ""}, headers=ORIGIN)

    assert 'method="post"' not in shown
    assert answer.status_code == 403
    assert list(known.last_calls.of(None)) == []


@pytest.mark.process
async def test_the_call_is_that_of_the_person_whose_token_the_browser_has(tmp_path: Path) -> None:
    known = catalogue()
    async with serving(known, "ann", tmp_path / "t.toml", ann={}, bob={}) as person:
        await person.call(ECHO, words="x")

    assert [call.caller for call in known.last_calls.of(None)] == ["ann"]


@pytest.mark.process
async def test_a_call_from_another_origin_is_never_sent() -> None:
    known = catalogue()
    async with serving(known) as person:
        token = await person.token(ECHO)
        fields = {"token": token, f"{PREFIX}words": "x"}
        answer = await person.http.post(ECHO, data=fields, headers={"origin": "http://127.0.0.1:9"})

    assert answer.status_code == 403
    assert list(known.last_calls.of(None)) == []
