"""Facts of the wire, as rows of the history.

These are generators: the thread that takes their rows does the counting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import structlog
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from query.answers.budget import counting
from query.history.store import Row, RowKey
from shared.catalog import MODEL_FIELDS
from shared.errors import IndexUnavailable
from shared.text.tokens import json_text

if TYPE_CHECKING:
    from mcp.types import ListToolsResult

    from query.savings.savings import Baseline
    from shared.catalog import Encoding

TOOLS_LIST = "tools/list"

_log = structlog.get_logger()


def list_rows(
    day: date,
    caller: str,
    page: ListToolsResult,
    protocol_version: str,
    encoding: Encoding,
    baseline: Callable[[], Baseline] | None = None,
) -> Iterator[Row]:
    """Yield the row of a page of `tools/list`: tokens of its tools in the model form, and bytes of their JSON.

    The first page has the baseline of the caller's scope. If the index does not answer, the list claims nothing.
    A page that the SDK rejects did not leave.
    """
    try:
        tools = tools_sent(page, protocol_version)
    except ValidationError:
        return
    count = counting(encoding)
    counts = {
        "answers": 1 if baseline else 0,
        "tokens": sum(count(_model_text(tool)) for tool in tools),
        "bytes": sum(_length(json_text(tool)) for tool in tools),
    }
    yield RowKey(day, caller, "", TOOLS_LIST), counts | (_baseline_counts(baseline) if baseline else {})


def answer_rows(
    day: date,
    caller: str,
    tool: str,
    texts: Sequence[str],
    encoding: Encoding,
    shown: Sequence[tuple[str, str]] = (),
    search: Mapping[str, int] | None = None,
    tokens: int | None = None,
) -> Iterator[Row]:
    """Yield the row of an answer of our tool, and one for each tool of a server that it shows.

    `texts` are those that Toolscale wrote; `search` has the counters of a search. `tokens` are those of the texts in
    this encoding, where they are known.
    """
    tokens = sum(map(counting(encoding), texts)) if tokens is None else tokens
    counts = {"answers": 1, "tokens": tokens, "bytes": sum(map(_length, texts))}
    yield RowKey(day, caller, "", tool), counts | dict(search or {})
    for server, name in shown:
        yield RowKey(day, caller, server, name), {"answers": 1}


def call_rows(
    day: date, caller: str, server: str, tool: str, result_bytes: int, took_ms: int, *, is_failed: bool = False
) -> Iterator[Row]:
    """Yield the row of a call of a server's tool; a failed call may have no result."""
    counts = {"answers": 0, "calls": 1, "bytes": result_bytes, "ms": took_ms}
    yield RowKey(day, caller, server, tool), counts | ({"failed_calls": 1} if is_failed else {})


def read_rows(day: date, caller: str, server: str, tool: str, resource_bytes: int) -> Iterator[Row]:
    """Yield the row of a resource, as a part of the results of the tool that linked to it."""
    yield RowKey(day, caller, server, tool), {"answers": 0, "bytes": resource_bytes}


def _baseline_counts(read: Callable[[], Baseline]) -> dict[str, int]:
    try:
        baseline = read()
    except IndexUnavailable as error:
        _log.warning("savings_baseline_missing", reason=str(error))
        return {}
    return {"baseline_tokens": baseline.model_tokens, "baseline_tools": baseline.tools}


def tools_sent(page: ListToolsResult, protocol_version: str) -> list[dict[str, Any]]:
    """Return the tools with the fields, and in the order of keys, that the SDK sends in this revision."""
    dumped = page.model_dump(mode="json", by_alias=True, exclude_none=True)
    tools: list[dict[str, Any]] = serialize_server_result(TOOLS_LIST, protocol_version, dumped)["tools"]
    return tools


def _model_text(tool: Mapping[str, Any]) -> str:
    return json_text({key: value for key, value in tool.items() if key in MODEL_FIELDS})


def _length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
