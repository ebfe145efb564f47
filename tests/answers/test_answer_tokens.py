"""Each answer of `find_tool` contains the tokens of the text that its client receives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.types import TextContent

from query.answers.answer import FindResponse, counted
from query.answers.budget import MIN_TOKENS, counting, parts
from query.catalogue import Catalogue
from query.mcp import service_of
from query.records import Baseline, Ledger, token_metrics
from shared.catalog import DEFAULT_ENCODING, ENCODINGS, Encoding, IndexedTool
from shared.settings import ResponseMode
from shared.text.tokens import counter, json_text
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.filled import record_of
from tests.support.profiles import examples

EMBEDDER = FakeEmbedder()
WORDS = ("read", "write", "file", "mail", "\u8aad\u3080", "\U0001f4c4")
for _encoding in ENCODINGS:
    counting(_encoding)  # loaded before the first example is timed

names = st.lists(st.sampled_from(WORDS[:4]), min_size=1, max_size=4).map("_".join)
tools = st.builds(
    make_tool,
    st.sampled_from(["files", "mail-server"]),
    names,
    st.lists(st.sampled_from(WORDS), max_size=60).map(". ".join),
    st.sampled_from([20, 60, 900]),
)
fleets = st.lists(tools, max_size=20, unique_by=lambda tool: tool.qualified_name)


def catalogue_of(fleet: Sequence[IndexedTool], encoding: Encoding, model_tokens: int, threshold: float) -> Catalogue:
    """Return a catalogue of these tools; its only server record has this sum of the model form."""
    index = FakeIndex()
    index.upsert([ingested(tool, EMBEDDER) for tool in fleet])
    index.put_server(record_of("files", fleet, groups=(), model_tokens=dict.fromkeys(ENCODINGS, model_tokens)))
    return Catalogue(index, EMBEDDER, Ledger(index), encoding, threshold)


async def texts_of_all_pages(catalogue: Catalogue, arguments: dict[str, Any]) -> list[str]:
    texts: list[str] = []
    async with Client(service_of(catalogue)) as client:
        while True:
            result = await client.call_tool("find_tool", arguments)
            (content,) = result.content
            assert isinstance(content, TextContent)
            assert not result.is_error or content.text.startswith("max_tokens: ")
            if result.is_error:
                return texts
            texts.append(content.text)
            if "nextCursor" not in (answer := json.loads(content.text)):
                return texts
            arguments = {**arguments, "cursor": answer["nextCursor"]}


def check(text: str, encoding: Encoding, model_tokens: int) -> None:
    metrics = json.loads(text)["token_metrics"]
    assert metrics.get("encoding", DEFAULT_ENCODING) == encoding
    assert metrics["net_tokens_saved"] == model_tokens - metrics["answer_tokens"]
    if metrics["answer_tokens"] != counting(encoding)(text):
        check_has_no_fixed_point(text, encoding)


def check_has_no_fixed_point(text: str, encoding: Encoding) -> None:
    """Hold that no near number is the tokens of the text that contains it, and that the stated one is no less."""
    stated = json.loads(text)["token_metrics"]["answer_tokens"]
    assert all(recount(text, encoding, tokens) != tokens for tokens in range(stated - 5, stated + 6))
    assert recount(text, encoding, stated) < stated


def recount(text: str, encoding: Encoding, stated: int) -> int:
    """Return the tokens of the text with this number in it."""
    answer = json.loads(text)
    metrics = answer["token_metrics"]
    net = metrics["net_tokens_saved"] + metrics["answer_tokens"] - stated
    return counting(encoding)(json_text(answer | {"token_metrics": metrics | _numbers(stated, net)}))


def _numbers(answer_tokens: int, net: int) -> dict[str, int]:
    return {"answer_tokens": answer_tokens, "net_tokens_saved": net}


@settings(max_examples=examples(100))
@given(
    fleet=fleets,
    detail=st.sampled_from([None, *get_args(ResponseMode)]),
    encoding=st.sampled_from(ENCODINGS),
    max_tokens=st.integers(MIN_TOKENS, 3_000),
    limit=st.integers(1, 8),
    model_tokens=st.integers(0, 3_000) | st.integers(0, 10**7),
    threshold=st.sampled_from([-1, -1, 1]),
)
def test_every_page_contains_the_tokens_of_its_own_text_and_is_within_the_budget(
    fleet: list[IndexedTool],
    detail: str | None,
    encoding: Encoding,
    max_tokens: int,
    limit: int,
    model_tokens: int,
    threshold: float,
) -> None:
    arguments = {"tool_description": "read a file", "max_tokens": max_tokens, "limit": limit, "encoding": encoding}
    catalogue = catalogue_of(fleet, "cl100k_base", model_tokens, threshold)

    texts = anyio.run(texts_of_all_pages, catalogue, arguments | ({"detail": detail} if detail else {}))

    for number, text in enumerate(texts):
        check(text, encoding, 0 if number else model_tokens)  # the first page claims the baseline
        assert counting(encoding)(text) <= max_tokens


@settings(max_examples=examples(60))
@given(fleet=fleets, limit=st.integers(1, 20))
def test_every_detail_level_ranks_alike(fleet: list[IndexedTool], limit: int) -> None:
    arguments = {"tool_description": "read a file", "limit": limit, "max_tokens": 5_000}
    catalogue = catalogue_of(fleet, "cl100k_base", 0, -1)

    answers = [
        anyio.run(texts_of_all_pages, catalogue, arguments | {"detail": detail}) for detail in get_args(ResponseMode)
    ]

    rankings = [[ranked(tool) for text in texts for tool in json.loads(text)["tools"]] for texts in answers]
    assert all(ranking == rankings[0] for ranking in rankings)


def ranked(tool: dict[str, Any]) -> str:
    return str(tool["name"])


def test_where_no_number_equals_the_tokens_of_its_text_the_larger_one_is_returned() -> None:
    empty = FindResponse(tools=[], token_metrics=token_metrics(Baseline(0, 0), [], "cl100k_base"), warnings=["w"] * 50)
    count = counting("cl100k_base")
    tokens = counted(empty, count).token_metrics.answer_tokens
    texts: list[str] = []
    # the net is just above or below 0, and 1,000: it gains or loses a token with the answer's own
    for model_tokens in (*range(tokens - 5, tokens + 5), *range(tokens + 995, tokens + 1_005)):
        metrics = token_metrics(Baseline(0, 0, model_tokens=model_tokens), [], "cl100k_base")
        texts.append(json_text(counted(empty.model_copy(update={"token_metrics": metrics}), count).as_object()))
        check(texts[-1], "cl100k_base", model_tokens)

    differing = [text for text in texts if count(text) != json.loads(text)["token_metrics"]["answer_tokens"]]
    assert differing, "no case of this test has no fixed point"


# --- counts of the parts of a text, which are remembered ---

SEPARATORS = (',{"name":"', ',{"', '[{"', '}],"', '":"', "'s", "\n", " ", "}", '"')
pieces = st.lists(st.one_of(st.sampled_from(SEPARATORS), st.text(max_size=12)), max_size=20).map("".join)


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@given(text=pieces)
def test_the_tokens_of_the_parts_add_up(encoding: Encoding, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = counter(encoding)(text)

    assert [counting(encoding)(text), counting(encoding)(text)] == [whole, whole]


def test_an_answer_is_divided_into_its_tools() -> None:
    answer = '{"tools":[{"name":"a:b","summary":"c"},{"serverName":"d","name":"e"}],"token_metrics":{"tokens":9}}'

    divided = parts(answer)

    assert "".join(divided) == answer
    assert divided[:2] == ['{"tools":[{"', 'name":"a:b","summary":"c"},{"']
    assert divided[2:] == ['serverName":"d","name":"e"}],"', 'token_metrics":{"tokens":9}}']
