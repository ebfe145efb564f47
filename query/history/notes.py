"""What an answer leaves for the history."""

from __future__ import annotations

from collections.abc import Iterable

from query.answer import FindAnswer, FoundTool
from query.caller import Caller
from query.history.contract import Called, Given, Searched
from query.history.periods import today


def given_by_search(answer: FindAnswer, caller: Caller, own_tokens: int, *, is_new: bool) -> Given:
    """Return what `find_tool` gave; a further page is no new search, and is only counted as returned."""
    metrics = answer.token_metrics
    searched = Searched(
        metrics.baseline_tokens, answer.baseline_tools, own_tokens, metrics.tokens_saved, answer.saved_by_server
    )
    shown = {(tool.server, tool.name): tool.shown_tokens for tool in answer.tools}
    tools, returned = _tools(answer.tools), metrics.returned_tokens
    return Given(today(), caller.name, tools, returned, searched if is_new else None, shown)


def given_by_description(tools: Iterable[FoundTool], caller: Caller) -> Given:
    """Return what `describe_tool` gave: definitions, which finding has led to."""
    shown = _tools(tools)
    return Given(today(), caller.name, shown, sum(shown.values()))


def called(caller: str, server: str, tool: str, response_bytes: int, *, is_failed: bool) -> Called:
    """Return that a caller called a tool on its server, now."""
    return Called(today(), caller, server, tool, response_bytes, is_failed)


def _tools(tools: Iterable[FoundTool]) -> dict[tuple[str, str], int]:
    return {(tool.server, tool.name): tool.token_count or 0 for tool in tools}
