"""The answers of find_tool that chaos accepts during faults, and those that it rejects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, CallToolResult, TextContent

from query.find import BEING_FILLED
from query.kept import RECENT_S
from query.tool import CATALOGUE_UNREACHABLE
from tests.chaos.history import History, Offer
from tests.chaos.judging import Judge

ALWAYS: Offer = ("steady", "paint", "Paints.")
SOME: Offer = ("restless", "read", "Reads.")
STILL_LISTED = "Servers still being listed: 3. Ask again in a few seconds."


@dataclass
class Court:
    """A judge whose clock stands still unless a test lets it go on."""

    at: float = 0.0
    history: History = field(init=False)
    judge: Judge = field(init=False)
    blamed: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.history = History(lambda: self.at)
        self.history.note("steady", {ALWAYS})
        self.judge = Judge(self.history, [ALWAYS], lambda server_id: server_id in self.blamed)

    def ask(self, wanted: Offer | None, *found: Offer, warnings: tuple[str, ...] = ()) -> list[str]:
        """Ask, have these tools found, and return what was wrong so far."""
        self.judge.answered(self.judge.ask(wanted), answer(*found, warnings=warnings))
        return self.judge.wrong


@pytest.fixture
def court() -> Court:
    return Court()


def answer(*found: Offer, warnings: tuple[str, ...] = ()) -> CallToolResult:
    tools = [{"name": f"{server}:{name}", "description": text} for server, name, text in found]
    content: dict[str, Any] = {"tools": tools, "warnings": list(warnings)}
    return CallToolResult(content=[], structured_content=content)


def refusal(said: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=said)], is_error=True)


def test_a_tool_that_is_gone_may_be_found_until_the_catalogue_has_followed(court: Court) -> None:
    court.history.note("restless", {SOME})
    court.at = 1.0
    court.history.note("restless", ())
    court.at = 4.5
    assert court.ask(None, SOME) == []

    court.at = 5.0
    court.history.agree()
    court.at = 6.0

    assert "after it was gone" in court.ask(None, SOME)[0]
    assert court.judge.asked().longest_stale_s == 5.0


def test_a_query_that_began_before_the_catalogue_followed_may_find_removed_tools(court: Court) -> None:
    court.history.note("restless", {SOME})
    court.at = 1.0
    court.history.note("restless", ())
    question = court.judge.ask()
    court.at = 2.0
    court.history.agree()

    court.judge.answered(question, answer(SOME))

    assert court.judge.wrong == []


def test_a_tool_that_returned_is_not_gone(court: Court) -> None:
    for at, offered in enumerate(({SOME}, (), {SOME})):
        court.at = float(at)
        court.history.note("restless", offered)
        court.history.agree()
    court.at = 9.0

    assert court.ask(None, SOME) == []


def test_a_tool_that_no_server_ever_offered_is_wrong(court: Court) -> None:
    assert "never offered" in court.ask(None, ("restless", "read", "Reads otherwise."))[0]


def test_a_tool_that_is_always_offered_is_missed_in_every_answer(court: Court) -> None:
    assert "not found, though always offered" in court.ask(ALWAYS, warnings=(STILL_LISTED,))[0]


def test_a_server_that_was_blamed_when_it_was_asked_for_or_is_by_now_may_be_hidden(court: Court) -> None:
    court.blamed = {"steady"}
    question = court.judge.ask(ALWAYS)
    court.blamed = set()
    court.judge.answered(question, answer())
    question = court.judge.ask(ALWAYS)
    court.blamed = {"steady"}
    court.judge.answered(question, answer())
    court.blamed = set()

    assert court.judge.wrong == []
    assert court.judge.asked().hidden == 2
    assert "not found" in court.ask(ALWAYS)[0]


@pytest.mark.parametrize("warning", [STILL_LISTED, BEING_FILLED])
def test_after_the_index_was_lost_an_answer_may_be_incomplete_until_the_tool_is_back(
    court: Court, warning: str
) -> None:
    court.at = 1.0
    court.judge.index_lost()
    court.at = 2.0
    assert court.ask(ALWAYS, ALWAYS) == []  # perhaps the answer from before the loss again
    assert court.ask(ALWAYS, warnings=(warning,)) == []
    court.at = 2.0 + RECENT_S
    assert court.ask(ALWAYS, ALWAYS) == []

    assert court.judge.asked().incomplete == 1
    assert len(court.ask(ALWAYS, warnings=(STILL_LISTED,))) == 1


def test_an_empty_answer_without_a_word_is_wrong_even_after_the_index_was_lost(court: Court) -> None:
    court.judge.index_lost()

    assert "not found" in court.ask(ALWAYS)[0]


def test_results_from_before_the_loss_of_the_index_do_not_count_after_it(court: Court) -> None:
    question = court.judge.ask(ALWAYS)
    court.at = 1.0
    court.judge.index_lost()
    court.judge.answered(question, answer(ALWAYS))
    court.at = 2.0

    assert court.ask(ALWAYS, warnings=(STILL_LISTED,)) == []
    assert not court.judge.have_all_been_found_since(1.0)


def test_errors_are_counted_by_kind_and_an_error_without_a_remedy_is_wrong(court: Court) -> None:
    gone = [httpx2.ConnectError("refused"), MCPError(code=CONNECTION_CLOSED, message="Connection closed")]
    for error in gone:
        court.judge.failed(court.judge.ask(), ExceptionGroup("", [ExceptionGroup("", [error])]))
    court.judge.answered(court.judge.ask(), refusal(CATALOGUE_UNREACHABLE))
    assert court.judge.wrong == []
    assert sorted(court.judge.asked().errors.values()) == [1, 2]

    court.judge.answered(court.judge.ask(), refusal("oops"))
    court.judge.failed(court.judge.ask(), MCPError(code=INTERNAL_ERROR, message="internal error"))

    assert len(court.judge.wrong) == 2
    assert court.judge.asked().questions == 5


def test_a_question_without_an_answer_in_time_is_wrong(court: Court) -> None:
    court.judge.failed(court.judge.ask(), ExceptionGroup("", [TimeoutError(), httpx2.ReadError("cancelled")]))

    assert "no answer within" in court.judge.wrong[0]
