"""Answers, calls and lists as rows of usage, and the thread that counts and writes them without delaying an answer.

The functions are generators: the thread that takes their rows does the counting.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date
from typing import TYPE_CHECKING, Any

import structlog
from mcp_types.methods import serialize_server_result
from pydantic import ValidationError

from query.answers.budget import counting
from query.replicas import first_server
from query.usage.usage import TOOLS_LIST, CatalogueSize, Row, RowKey, Usage, summed, today
from shared.catalog import DEFAULT_ENCODING, MODEL_FIELDS, Scope
from shared.errors import HistoryUnavailable, IndexUnavailable
from shared.service.command_line import COMMAND_LINE
from shared.service.every import every
from shared.text.tokens import json_text

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.types import ListToolsResult

    from query.records import Baseline, Ledger
    from shared.catalog import Encoding

MAX_WAITING = 1_000
# Each write is a transaction: the events of so many seconds share one.
WRITE_EVERY_S = 0.25
SAMPLE_EVERY_S = 10.0

# Of the built-in tools, the answers of these show tools of servers.
_FIND, _DESCRIBE = "find_tool", "describe_tool"
RUN_SCRIPT = "run_script"

Event = Iterable[Row]
"""The rows of one fact. A generator counts when it is read, which is in the recorder's thread."""

_log = structlog.get_logger()


class Recorder:
    """Counts events and adds their sums to the usage. A slow or failing store drops events, and delays no answer."""

    def __init__(self, usage: Usage, max_waiting: int = MAX_WAITING) -> None:
        self._usage = usage
        self._waiting: queue.Queue[Event] = queue.Queue(max_waiting)
        self._dropped = 0

    def record(self, event: Event) -> None:
        """Queue an event. Returns at once and never raises, from any thread."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def write(self) -> None:
        """Add the queued events in one transaction.

        Raises:
            HistoryUnavailable: they are dropped; the log has their number once the store answers.
        """
        rows, taken = list[Row](), 0
        with suppress(queue.Empty):
            for _ in range(self._waiting.maxsize):
                event = self._waiting.get_nowait()
                taken += 1
                rows += self._rows(event)
        if not taken:
            return
        self._dropped += taken
        self._usage.add(summed(rows))
        self._dropped -= taken
        if self._dropped:
            _log.warning("savings_dropped", events=self._dropped)
        self._dropped = 0

    def _rows(self, event: Event) -> list[Row]:
        """Return the rows of an event; one that cannot be counted is dropped, and the others are written."""
        try:
            return list(event)
        except BaseException as error:  # noqa: BLE001  # a panic of tiktoken's Rust side is no Exception
            self._dropped += 1
            _log.warning("savings_event_invalid", reason=repr(error))
            return []


@contextmanager
def recording(usage: Usage, max_waiting: int = MAX_WAITING, every_s: float = WRITE_EVERY_S) -> Generator[Recorder]:
    """Yield a recorder whose events a thread writes until the block ends; queued events are written first."""
    recorder = Recorder(usage, max_waiting)
    with every(every_s, recorder.write, "savings_write_failed"):
        yield recorder
    with suppress(HistoryUnavailable):
        recorder.write()


def not_recorded(_: Event) -> None:
    """Record nothing: for processes that keep no usage."""


def is_command(context: ServerRequestContext[Any]) -> bool:
    """Return whether a command in a terminal asks, and no agent."""
    client = context.session.client_params
    return client is not None and client.client_info.name == COMMAND_LINE


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
    models = ({key: value for key, value in tool.items() if key in MODEL_FIELDS} for tool in tools)
    counts = {
        "answers": 1 if baseline else 0,
        "tokens": sum(count(json_text(model)) for model in models),
        "bytes": sum(_length(json_text(tool)) for tool in tools),
    }
    if baseline:
        try:
            claimed = baseline()
            counts |= {"baseline_tokens": claimed.model_tokens, "baseline_tools": claimed.tools}
        except IndexUnavailable as error:
            _log.warning("savings_baseline_missing", reason=str(error))
    yield RowKey(day, caller, "", TOOLS_LIST), counts


def tools_sent(page: ListToolsResult, protocol_version: str) -> list[dict[str, Any]]:
    """Return the tools with the fields, and in the order of keys, that the SDK sends in this revision."""
    dumped = page.model_dump(mode="json", by_alias=True, exclude_none=True)
    tools: list[dict[str, Any]] = serialize_server_result(TOOLS_LIST, protocol_version, dumped)["tools"]
    return tools


def answer_rows(
    day: date,
    caller: str,
    tool: str,
    texts: Sequence[str],
    encoding: Encoding,
    response: Mapping[str, Any] | None = None,
    *,
    is_first_page: bool = True,
) -> Iterator[Row]:
    """Yield the row of an answer of our tool, and one for each tool of a server that it shows.

    `texts` are those that Toolscale wrote, and `response` is the object that they state; an error has none.
    A further page of `find_tool` belongs to the search before.
    """
    response = response or {}
    metrics = response.get("token_metrics") if tool == _FIND else None
    if metrics and metrics.get("encoding", DEFAULT_ENCODING) == encoding:
        tokens = metrics["answer_tokens"]  # counted already
    else:
        tokens = sum(map(counting(encoding), texts))
    counts = {"answers": 1, "tokens": tokens, "bytes": sum(map(_length, texts))}
    if metrics and is_first_page:
        # no tool means no saving
        found = {"tokens_saved": metrics["tokens_saved"]} if response["tools"] else {"found_nothing": 1}
        counts |= {"searches": 1, **found}
    yield RowKey(day, caller, "", tool), counts
    for shown in response.get("tools", ()) if tool in (_FIND, _DESCRIBE) else ():
        server, name = first_server(shown["name"], shown.get("served_by", {}).get("servers", ()))
        yield RowKey(day, caller, server, name), {"answers": 1}


def call_rows(
    day: date, caller: str, server: str, tool: str, result_bytes: int, took_ms: int, *, is_failed: bool = False
) -> Iterator[Row]:
    """Yield the row of a call of a server's tool; a failed call may have no result."""
    counts = {"answers": 0, "calls": 1, "bytes": result_bytes, "ms": took_ms}
    yield RowKey(day, caller, server, tool), counts | ({"failed_calls": 1} if is_failed else {})


def script_rows(day: date, caller: str, inner_tokens: int, result_tokens: int) -> Iterator[Row]:
    """Yield the row of a script: tokens of the results of its calls, and of what came back of them."""
    counts = {"answers": 0, "inner_tokens": inner_tokens, "result_tokens": result_tokens}
    yield RowKey(day, caller, "", RUN_SCRIPT), counts


def read_rows(day: date, caller: str, server: str, tool: str, resource_bytes: int) -> Iterator[Row]:
    """Yield the row of a resource, as a part of the results of the tool that linked to it."""
    yield RowKey(day, caller, server, tool), {"answers": 0, "bytes": resource_bytes}


@contextmanager
def sampling(usage: Usage, ledger: Ledger, encoding: Encoding, every_s: float = SAMPLE_EVERY_S) -> Generator[None]:
    """Store the catalogue's size of the day in a thread until the block ends, and once at the end.

    A sample writes only a size that differs from the last one. Replicas read the same records, so their order of
    writing does not matter.
    """
    stored: tuple[date, CatalogueSize] | None = None

    def sample() -> None:
        nonlocal stored
        costs = [cost for cost in ledger.by_server(Scope(), encoding).values() if cost.tools]
        tools, tokens = sum(cost.tools for cost in costs), sum(cost.model_tokens for cost in costs)
        found = today(), CatalogueSize(len(costs), tools, tokens)
        if found != stored:
            usage.put_size(*found)
        stored = found

    with every(every_s, sample, "catalogue_size_not_stored"):
        yield
    with suppress(IndexUnavailable, HistoryUnavailable):
        sample()


def _length(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
