"""An answer that is sent again equals the answer of a new search, whatever changed between the two."""

from __future__ import annotations

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from query.caller import Caller
from query.catalogue import Catalogue
from query.find import FURTHER_LOST, MAX_KEPT_TOKENS, FindTool, find_tool, may_repeat
from query.kept import MOST_RECENT, RECENT_S, Recent
from query.records import Ledger
from query.search.ranking import NO_THRESHOLD
from query.search.request import FindRequest
from tests.support.builders import Clock
from tests.support.fakes import FakeEmbedder, FakeIndex, ingested, make_tool
from tests.support.filled import record_of

SERVERS, GROUPS = ("time", "files"), ("red", "blue")
NAMES = ("get_time", "read_file", "convert_time")
CALLERS = (Caller("anyone"), Caller("red", frozenset({"red"})), Caller("poor", limit_tokens=15, budget_tokens=15))
NO_MATCH = 2.0
"""No similarity is so high, so only names and words match."""
QUESTIONS = ({"tool_description": "time"}, {"tool_description": "file", "limit": 1}, {"tool_description": "get"})

offers = st.tuples(st.sampled_from(SERVERS), st.sets(st.sampled_from(NAMES)), st.sampled_from(GROUPS))
questions = st.tuples(st.sampled_from(CALLERS), st.sampled_from(QUESTIONS))


class World:
    """A catalogue whose servers change, and `find_tool` as clients reach it."""

    def __init__(self, no_match_threshold: float = NO_THRESHOLD) -> None:
        self.index, self.embedder, self._revisions = FakeIndex(), FakeEmbedder(), count(1)
        self.catalogue = Catalogue(self.index, self.embedder, Ledger(self.index), no_match_threshold=no_match_threshold)
        self.tool = FindTool(self.catalogue)

    def offer(self, server: str, names: set[str], group: str) -> None:
        """Make a server offer these tools, as a reconciliation does: its record last."""
        tools = [make_tool(server, name, groups=[group]) for name in sorted(names)]
        self.index.delete(server, set(NAMES) - names)
        self.index.upsert([ingested(tool, self.embedder) for tool in tools])
        self.index.put_server(record_of(server, tools, groups=[group], revision=next(self._revisions)))

    def answer(self, caller: Caller, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer as a client gets it, without its random cursor."""
        return _without_cursor(self.tool.respond(FindRequest(**question), caller))

    def new_answer(self, caller: Caller, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer of a new search."""
        response, _ = find_tool(FindRequest(**question), caller.scope, self.catalogue, caller)
        return _without_cursor(response.as_object())


def _without_cursor(answer: dict[str, Any]) -> dict[str, Any]:
    has_cursor = answer.pop("nextCursor", None) is not None
    answer["token_metrics"] = {**answer["token_metrics"], "answer_tokens": 0, "net_tokens_saved": 0}
    return {**answer, "has_cursor": has_cursor}


@given(st.lists(st.one_of(offers, questions), max_size=12), st.sampled_from([NO_THRESHOLD, NO_MATCH]))
def test_an_answer_equals_that_of_a_new_search(steps: list[tuple[Any, ...]], no_match_threshold: float) -> None:
    world = World(no_match_threshold)
    for step in steps:
        if isinstance(step[0], Caller):
            assert world.answer(*step) == world.new_answer(*step)
        else:
            world.offer(*step)


def test_a_repeated_question_is_not_searched_again_until_a_server_changes() -> None:
    world = World()
    world.offer("time", {"get_time"}, "red")

    answers = [world.answer(CALLERS[0], QUESTIONS[0]) for _ in range(3)]
    searched = len(world.embedder.queries)
    world.offer("files", {"convert_time"}, "red")
    afterwards = world.answer(CALLERS[0], QUESTIONS[0])

    assert (searched, len(world.embedder.queries)) == (1, 2)
    assert answers[0] == answers[1] == answers[2]
    assert {tool["name"] for tool in afterwards["tools"]} == {"time:get_time", "files:convert_time"}


def test_an_answer_without_names_or_its_cursor_and_a_very_long_one_are_not_sent_again() -> None:
    world = World()
    world.offer("time", {"get_time"}, "red")
    usual, _ = find_tool(FindRequest(tool_description="time"), CALLERS[0].scope, world.catalogue)
    empty = usual.model_copy(update={"tools": []})
    long = usual.model_copy(update={"token_metrics": usual.token_metrics.with_answer_tokens(MAX_KEPT_TOKENS + 1)})
    lost = usual.model_copy(update={"warnings": [FURTHER_LOST]})

    assert [may_repeat(response) for response in (usual, empty, long, lost)] == [True, False, False, False]
    assert may_repeat(empty.model_copy(update={"nearest": ["time:get_time"]}))


def test_a_value_is_kept_for_a_while_only() -> None:
    clock, state = Clock(), object()
    recent: Recent[str] = Recent(clock)
    recent.keep("usual", state, "answer")

    assert recent.get("usual", state) == "answer"
    clock.ahead_s = RECENT_S + 1
    assert recent.get("usual", state) is None


def test_the_values_that_were_not_used_for_longest_give_way() -> None:
    state = object()
    recent: Recent[str] = Recent()
    for number in range(MOST_RECENT):
        recent.keep(number, state, "answer")
    used = recent.get(0, state)

    recent.keep(MOST_RECENT, state, "answer")

    assert used == "answer"
    assert (recent.get(0, state), recent.get(1, state), recent.get(MOST_RECENT, state)) == ("answer", None, "answer")
