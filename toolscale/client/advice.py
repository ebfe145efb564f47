"""`toolscale advice`: from a running service, or from the index and the history of the settings."""

from __future__ import annotations

from contextlib import closing
from urllib.parse import urlencode

from pydantic import ValidationError
from rich.console import Group

from query.caller import operator
from query.catalogue import catalogue_of
from query.toolsets.advice import Advice, advice_for
from query.usage.usage import open_usage
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
    with closing(versions.store), closing(open_usage(settings)) as usage:
        versions.ensure_own_version()
        active, _ = versions.current()
        return advice_for(operator(), catalogue_of(active.index, active.embedder, settings), usage, toolset, budget)


def view(advice: Advice) -> Group:
    """Return the advice as sentences and a table, which names at most SHOWN tools to offer and SHOWN to drop."""
    table = number_table("tool", "tokens", "calls", "advice")
    for tool in (*advice.chosen[:SHOWN], *advice.dropped[:SHOWN]):
        table.add_row(printable(tool.name), thousands(tool.tokens), thousands(tool.calls), tool.verdict)
    budget = f"Budget: {advice.budget_tokens:,} tokens; {advice.encoding}, {advice.profile} profile."
    return Group(*map(printable, advice.sentences), budget, *(("", table) if table.row_count else ()))


def _served(url: str, token: str | None, toolset: str | None, budget: int | None) -> Advice:
    query = urlencode({"toolset": toolset or "", "budget": budget or ""})
    answer = request_json("GET", f"/ui/advice.json?{query}", url, token, permission="catalog:read")
    try:
        return Advice.model_validate(answer)
    except ValidationError as error:
        raise ServiceRejected(f"{url} answers in a form that this version does not read") from error
