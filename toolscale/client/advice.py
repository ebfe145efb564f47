"""`toolscale advice`: from a running service, or from the index and the history of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from urllib.parse import urlencode

from pydantic import ValidationError
from rich.console import Group
from rich.table import Table

from query.advice.report import Advice, advice_for
from query.advice.use import ToolUse
from query.caller import operator
from query.catalogue import catalogue_of
from query.history import open_history
from shared.errors import IndexHeld, ServiceRejected
from shared.index.versions import open_index_versions
from shared.quoting import printable
from shared.settings import Settings
from shared.text.embedding import FastEmbedder
from toolscale.client.instance import service_url
from toolscale.client.requests import request_json
from toolscale.console import number_table, thousands

SHOWN = 20


def read_advice(
    settings: Settings, toolset: str | None, budget: int | None, url: str | None, token: str | None
) -> Advice:
    """Return the advice of a service at this URL, or by default on the catalogue of the settings.

    Raises:
        ToolsetUnknown, ServiceRejected: there is no such toolset, or the token has no permission.
        ServiceUnreachable: the URL, or the process that holds the index, does not answer.
        IndexUnavailable, HistoryUnavailable: a store does not answer.
    """
    if url:
        return _served(url, token, toolset, budget)
    try:
        versions = open_index_versions(settings, FastEmbedder(settings.embedding_model))
    except IndexHeld:
        return _served(service_url(settings), token, toolset, budget)
    with closing(versions.store), closing(open_history(settings)) as history:
        versions.ensure_own_version()
        active, _ = versions.current()
        return advice_for(operator(), catalogue_of(active.index, active.embedder, settings), history, toolset, budget)


def view(advice: Advice) -> Group:
    """Return the advice as sentences and tables, without empty tables."""
    offered = f"Offered today: {advice.offered.tokens:,} tokens ({advice.labels['tokens']})"
    called = f"{offered}, with {advice.offered.calls:,} calls and {advice.lists:,} lists of any toolset (measured)."
    budget = f"Budget: {advice.budget_tokens:,} tokens; {advice.encoding}, {advice.profile} profile."
    tables = (
        _uses("tools to offer", advice.advised.tools, advice),
        _uses("tools to drop", advice.dropped, advice),
        _shown(advice),
        _rivals(advice),
    )
    filled = [part for table in tables if table.row_count for part in ("", table)]
    return Group(*map(printable, advice.sentences), called, budget, *filled)


def _served(url: str, token: str | None, toolset: str | None, budget: int | None) -> Advice:
    query = urlencode({"toolset": toolset or "", "budget": budget or ""})
    answer = request_json("GET", f"/ui/advice.json?{query}", url, token, permission="catalog:read")
    try:
        return Advice.model_validate(answer)
    except ValidationError as error:
        raise ServiceRejected(f"{url} answers in a form that this version does not read") from error


def _uses(title: str, tools: Sequence[ToolUse], advice: Advice) -> Table:
    table = number_table(title, f"tokens ({advice.labels['tokens']})", "calls (measured)", "callers (measured)")
    for tool in tools[:SHOWN]:
        table.add_row(printable(tool.name), *map(thousands, (tool.tokens, tool.calls, tool.callers)))
    return table


def _shown(advice: Advice) -> Table:
    table = number_table("most expensive in answers", "answers (measured)", "calls (measured)", "tokens (estimated)")
    for tool in advice.shown_most:
        table.add_row(printable(tool.name), *map(thousands, (tool.shown, tool.calls, tool.shown_tokens)))
    return table


def _rivals(advice: Advice) -> Table:
    table = number_table("seem to do the same (estimated)", "calls (measured)", "similarity (measured)")
    for pair in advice.rivals:
        names, calls = zip(*((printable(tool.name), thousands(tool.calls)) for tool in pair.tools), strict=True)
        table.add_row(" and ".join(names), " and ".join(calls), f"{pair.similarity:.2f}")
    return table
