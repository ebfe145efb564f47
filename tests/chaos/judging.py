"""Valid answers of find_tool during faults, and the answers it gave."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx2
from mcp.shared.exceptions import MCPError
from mcp.types import CONNECTION_CLOSED, CallToolResult, TextContent

from query.find import BEING_FILLED
from query.kept import RECENT_S
from query.replicas import first_server
from query.tool import CATALOGUE_UNREACHABLE, CURSOR_STORE_UNAVAILABLE
from tests.chaos.history import History, Offer
from tests.chaos.results import Asked

# A frozen process delays its callers until it continues.
ANSWER_WITHIN_S = 20.0

NO_PROCESS = "no process was listening, or the called process was killed"
REFUSALS = {
    CATALOGUE_UNREACHABLE: "the index did not answer",
    CURSOR_STORE_UNAVAILABLE: "further pages could not be kept",
}
MORE_TO_COME = (BEING_FILLED, "Servers still being listed: ")


@dataclass(frozen=True)
class Question:
    """A pending query; `wanted` is a tool that is always offered, and first for this query."""

    wanted: Offer | None
    asked_at: float
    agreed_at: float
    is_blamed: bool = False


class Judge:
    """Counts the results of queries, and lists violations in `wrong`.

    A tool that was gone when the catalogue last followed the fleet is never found again. A tool that is always
    offered is always found, with two exceptions. After a loss of the index an answer may be marked as incomplete,
    until the tool is found again. A server that `is_blamed` for deaths of workers may be hidden.
    """

    def __init__(
        self, history: History, always: Collection[Offer], is_blamed: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._is_blamed = is_blamed
        self.wrong: list[str] = []
        self._history = history
        self._always = frozenset(always)
        self._awaited: set[Offer] = set()
        self._lost_at = -math.inf
        self._found_at: dict[Offer, float] = {}
        self._questions = self._answers = self._incomplete = self._hidden = 0
        self._errors: Counter[str] = Counter()
        self._longest_s = self._longest_error_s = self._longest_stale_s = 0.0

    def ask(self, wanted: Offer | None = None) -> Question:
        """Begin a question."""
        self._questions += 1
        is_blamed = wanted is not None and self._is_blamed(wanted[0])
        return Question(wanted, self._history.now(), self._history.agreed_at, is_blamed)

    def index_lost(self) -> None:
        """Note that nothing that was found before need be found now."""
        self._awaited = set(self._always)
        # until then, an answer from before the loss may be sent again
        self._lost_at = self._history.now() + RECENT_S

    def answered(self, question: Question, result: CallToolResult) -> None:
        """Judge an answer."""
        if result.is_error or result.structured_content is None:
            self._refused(question, " ".join(block.text for block in result.content if isinstance(block, TextContent)))
            return
        self._answers += 1
        self._longest_s = max(self._longest_s, self._history.now() - question.asked_at)
        found = {offer for tool in result.structured_content["tools"] for offer in _offers(tool)}
        for offer in found:
            self._judge(offer, question)
        if question.wanted:
            self._judge_wanted(question.wanted, question, found, result.structured_content.get("warnings", []))

    def failed(self, question: Question, error: BaseException) -> None:
        """Judge what a question ended in that got no answer."""
        if all(_is_of_a_killed_process(leaf) for leaf in _leaves(error)):
            self._count_error(NO_PROCESS, question)
        elif any(isinstance(leaf, TimeoutError) for leaf in _leaves(error)):
            self.wrong.append(f"no answer within {ANSWER_WITHIN_S:g} s")
        else:
            self.wrong.append(f"neither an answer nor a plain error: {[repr(leaf) for leaf in _leaves(error)]}")

    @property
    def answers(self) -> int:
        """Return how many answers there were."""
        return self._answers

    def have_all_been_found_since(self, moment: float) -> bool:
        """Return whether everything that is always offered was found by a question asked after this moment."""
        return all(self._found_at.get(offer, -math.inf) > moment for offer in self._always)

    def asked(self) -> Asked:
        """Return what became of all questions so far."""
        return Asked(
            questions=self._questions,
            answers=self._answers,
            incomplete=self._incomplete,
            hidden=self._hidden,
            errors=dict(self._errors),
            within_s=ANSWER_WITHIN_S,
            longest_s=round(self._longest_s, 2),
            longest_error_s=round(self._longest_error_s, 2),
            longest_stale_s=round(self._longest_stale_s, 2),
        )

    def _refused(self, question: Question, said: str) -> None:
        if said in REFUSALS:
            self._count_error(REFUSALS[said], question)
        else:
            self.wrong.append(f"an error that nobody can act upon: {said!r}")

    def _count_error(self, kind: str, question: Question) -> None:
        self._errors[kind] += 1
        self._longest_error_s = max(self._longest_error_s, self._history.now() - question.asked_at)

    def _judge(self, offer: Offer, question: Question) -> None:
        gone_for_s = self._history.gone_for_s(offer)
        if gone_for_s is None:
            self.wrong.append(f"found, though never offered: {offer}")
            return
        self._longest_stale_s = max(self._longest_stale_s, gone_for_s)
        if gone_for_s and self._history.now() - gone_for_s < question.agreed_at:
            self.wrong.append(f"found {gone_for_s:.1f} s after it was gone, and the catalogue had followed: {offer}")

    def _judge_wanted(self, wanted: Offer, question: Question, found: set[Offer], warnings: list[str]) -> None:
        if wanted in found:
            self._found_at[wanted] = question.asked_at
            if question.asked_at > self._lost_at:
                self._awaited.discard(wanted)
        elif wanted in self._awaited and any(text.startswith(MORE_TO_COME) for text in warnings):
            self._incomplete += 1
        elif question.is_blamed or self._is_blamed(wanted[0]):
            self._hidden += 1
        else:
            self.wrong.append(f"not found, though always offered: {wanted}, warnings {warnings}")


def _offers(tool: dict[str, Any]) -> list[Offer]:
    replicas = tool.get("served_by", {}).get("servers", ())
    first, name = first_server(tool["name"], replicas)
    return [(server_id, name, tool["description"]) for server_id in replicas or (first,)]


def _is_of_a_killed_process(error: BaseException) -> bool:
    return isinstance(error, httpx2.TransportError) or (isinstance(error, MCPError) and error.code == CONNECTION_CLOSED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for cause in cast("BaseExceptionGroup[BaseException]", error).exceptions:
        yield from _leaves(cause)
