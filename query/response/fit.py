"""The answer of `find_tool` within its budget: definitions, else summaries, else names, and as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

import structlog

from query.paging.budget import MAX_TOKEN_CHARACTERS, Budget, json_text
from query.paging.fitting import most_that_fit
from query.paging.policy import Cut, uncounted
from query.response.find_response import FindAnswer, Form, FoundTool, found, warnings
from query.response.pages import TOOL
from query.response.timings import Timings
from query.savings.savings import Baseline, TokenMetrics, token_metrics
from query.search.search import Hit
from shared.catalog import Encoding, IndexedTool, point_id
from shared.errors import BudgetTooSmall

if TYPE_CHECKING:
    from shared.settings import ResponseMode

# As long, and as many tokens, as a cursor commonly has: to measure with, where the true one is not made yet.
_LIKE_A_CURSOR = "q7Zk0XvB3nTfYw9LrD5sHcJ2mPgA8eUo4iKxVb1NtQyRz6WlSdFhGjMpCaEuOvIkB0nXw5T3YZ"

_NOWHERE = Timings(0.0, 0.0, 0.0, 0.0)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search found, before it is decided how it is shown.

    `hits` are what fits, else `nearest` names what came closest; `is_all` says that no further tools were found.
    `spent` are sentences on the caller's own budget, which may have left hits out.
    """

    hits: Sequence[Hit]
    nearest: Sequence[str]
    is_all: bool
    baseline: Baseline
    encoding: Encoding
    keywords_only: bool
    being_listed: int
    being_filled: bool
    stale_since: Callable[[str], float | None]
    cursor_after: Callable[[Sequence[str]], str]
    spent: Sequence[str] = ()


def within_budget(findings: Findings, mode: ResponseMode, budget: Budget, cut: Cut = uncounted) -> FindAnswer:
    """Return the answer as the mode says, in a shorter form or with fewer tools where the budget demands it.

    Raises:
        BudgetTooSmall: not even one tool's name fits.
        CursorsUnavailable: the cursor to the next page cannot be made now.
    """
    view = _View(findings, budget, cut)
    if not findings.hits:
        return view.without_tools()
    for form, at_least in _forms(mode, len(findings.hits)):
        answer = view.most(form, at_least, is_wished=form == mode or form == "detailed")
        if answer is not None:
            return answer
    raise BudgetTooSmall(f"max_tokens: {budget.max_tokens} are too few for the next tool; ask for more")


def _forms(mode: ResponseMode, hits: int) -> list[tuple[Form, int]]:
    """Return the forms to try, each with the number of tools that it must hold to be taken."""
    shorter: list[tuple[Form, int]] = [("summary", 1), ("name", 1)]
    if mode == "summary":
        return shorter
    return [("detailed", hits if mode == "auto" else 1), *shorter]


@dataclass(frozen=True, slots=True)
class _View:
    """The findings, to be shown within a budget."""

    findings: Findings
    budget: Budget
    cut: Cut

    def most(self, form: Form, at_least: int, *, is_wished: bool) -> FindAnswer | None:
        """Return the answer with the most tools of this form that fits; None where they are too few."""
        most = self._limit() if form == "detailed" else len(self.findings.hits)
        if most < at_least:
            return None
        answer = self._answer(form, most, is_wished=is_wished)
        if self._fits(answer):
            return self._logged(answer, form, is_wished=is_wished)
        # measured with a stand-in: a true cursor may have to be kept
        count = most_that_fit(
            most - 1,
            lambda n: self._fits(self._answer(form, n, is_wished=is_wished, cursor=_LIKE_A_CURSOR)),
        )
        for fewer in range(count, at_least - 1, -1):
            answer = self._answer(form, fewer, is_wished=is_wished)
            if self._fits(answer):
                return self._logged(answer, form, is_wished=is_wished)
        return None

    def without_tools(self) -> FindAnswer:
        """Return the answer where nothing fits the question, with as many of the nearest as there is room for."""
        names = self.findings.nearest
        count = most_that_fit(len(names), lambda n: self._fits(self._nothing(names[:n])))
        return self._nothing(names[:count])

    def _limit(self) -> int:
        """Return how many definitions may fit, by their counts alone: nothing of a huge one is read."""
        sums = accumulate(_at_least(hit.tool, self.findings.encoding) for hit in self.findings.hits)
        return sum(1 for _ in takewhile(lambda tokens: tokens <= self.budget.max_tokens, sums))

    def _fits(self, answer: FindAnswer) -> bool:
        return self.budget.admits(json_text(answer.as_object()))

    def _answer(self, form: Form, count: int, *, is_wished: bool, cursor: str | None = None) -> FindAnswer:
        findings, hits = self.findings, self.findings.hits[:count]
        tools = [self._shown(hit, form) for hit in hits]
        is_all = findings.is_all and count == len(findings.hits)
        points = [point_id(hit.tool.server_id, hit.tool.definition.name) for hit in hits]
        return FindAnswer(
            tools=tools,
            keywords_only=findings.keywords_only or None,
            token_metrics=self._metrics(form, hits, sum(tool.shown_tokens for tool in tools)),
            warnings=self._warnings(tools, self._bounded(form, count, is_wished=is_wished)),
            nextCursor=None if is_all else cursor or findings.cursor_after(points),
            timings=_NOWHERE,
        )

    def _nothing(self, nearest: Sequence[str]) -> FindAnswer:
        no_match = bool(self.findings.nearest)
        return FindAnswer(
            tools=[],
            no_match=no_match or None,
            nearest=list(nearest) if no_match else None,
            keywords_only=self.findings.keywords_only or None,
            token_metrics=self._metrics("name" if no_match else "detailed", [], 0),
            warnings=self._warnings([], "", no_match=no_match),
            nextCursor=self.findings.cursor_after([]) if self.findings.spent and not self.findings.is_all else None,
            timings=_NOWHERE,
        )

    def _shown(self, hit: Hit, form: Form) -> FoundTool:
        """Return a hit in this form, with what that costs."""
        findings, count = self.findings, self.budget.count
        stale_since = findings.stale_since(hit.tool.server_id)
        tool = found(hit.tool, hit.score, stale_since, findings.encoding, form)
        if form == "detailed":
            return tool.model_copy(update={"shown_tokens": tool.token_count or 0})
        text = hit.tool.qualified_name if form == "name" else tool.summary or ""
        return tool.model_copy(update={"shown_tokens": count(text)})

    def _metrics(self, form: Form, hits: Sequence[Hit], shown_tokens: int) -> TokenMetrics:
        findings = self.findings
        shown = None if form == "detailed" else shown_tokens
        metrics = token_metrics(findings.baseline, [hit.tool for hit in hits], findings.encoding, shown)
        return metrics.model_copy(update={"uncounted": []}) if form == "name" else metrics

    def _warnings(self, tools: Sequence[FoundTool], bounded: str, *, no_match: bool = False) -> list[str]:
        findings = self.findings
        return warnings(
            tools,
            no_match=no_match,
            keywords_only=findings.keywords_only,
            being_listed=findings.being_listed,
            being_filled=findings.being_filled,
            bounded=bounded,
            spent=findings.spent,
        )

    def _bounded(self, form: Form, count: int, *, is_wished: bool) -> str:
        """Return what to say of an answer that is shorter than was asked for; nothing, where it is not."""
        kept_short = f"to stay within {self.budget.max_tokens} tokens"
        if form == "name":
            return f"Names only, {kept_short}."
        fewer = count < len(self.findings.hits)
        if not is_wished:
            return f"Summaries, {kept_short}; describe_tool has the definitions."
        return f"Only {count} of {len(self.findings.hits)} tools, {kept_short}." if fewer else ""

    def _logged(self, answer: FindAnswer, form: Form, *, is_wished: bool) -> FindAnswer:
        shown, hits = len(answer.tools), len(self.findings.hits)
        if shown < hits or not is_wished or form == "name":
            kind = form if shown == hits else "page"
            _log.warning("answer_bounded", tool=TOOL, form=kind, max_tokens=self.budget.max_tokens)
            self.cut(TOOL, kind)
        return answer


def _at_least(tool: IndexedTool, encoding: Encoding) -> int:
    counted = tool.token_counts.get(encoding)
    return len(tool.definition.wire) // MAX_TOKEN_CHARACTERS if counted is None else counted
