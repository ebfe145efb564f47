"""Compare the catalogue with what is true of the fleet: ids, digests, counts, statuses and sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from shared.catalog import ENCODINGS, Encoding, IndexedTool, Scope, Status, ToolDefinition, digest, point_id
from shared.index.tools import ToolIndex
from shared.settings import load_settings
from shared.text import BUNDLED_MODEL
from shared.text.embedding import BUNDLED_DIMENSION
from shared.text.tokens import counters, estimate_tool, json_text
from tests.chaos.fleet import Fleet, Scripted
from tests.support.indexes import open_index

DECLARED_NAME = "scripted"
STATUSES: tuple[Status, ...] = ("running", "stopped", "quarantined")
MORE_THAN_ANY_FLEET = 100_000

Entry = tuple[str, str, tuple[tuple[str, int], ...], str]


def differences(fleet: Fleet, data_dir: Path) -> tuple[int, list[str]]:
    """Return how many tools the catalogue holds, and what is wrong in it: nothing, when it equals the truth.

    No worker may have the directory open, unless QDRANT_URL is set.
    """
    with closing(open_index(load_settings(data_dir=data_dir), BUNDLED_MODEL, BUNDLED_DIMENSION)) as index:
        held = list(_held(index))
        ids = [point_id(tool.server_id, tool.definition.name) for tool in held]
        sick = {server.server_id for server in fleet.all if server.mood != "good"}
        found = {key: _entry(tool, is_sick=tool.server_id in sick) for key, tool in zip(ids, held, strict=True)}
        wrong = [f"twice: {len(ids) - len(found)} points"] if len(ids) != len(found) else []
        return len(held), wrong + list(_wrong_tools(found, fleet)) + list(_wrong_sums(index, fleet))


def _held(index: ToolIndex) -> Iterator[IndexedTool]:
    for status in STATUSES:
        yield from index.tools(Scope(status=status), limit=MORE_THAN_ANY_FLEET).tools


def _wrong_tools(found: dict[str, Entry], fleet: Fleet) -> Iterator[str]:
    true = {key: entry for server in fleet.all if server.is_up and server.is_kept for key, entry in _true(server)}
    kept = {server.server_id for server in fleet.all if not server.is_up}
    for key, entry in true.items():
        if key not in found:
            yield f"lost: {entry}"
        elif found[key] != entry:
            yield f"differs: {found[key]}, true: {entry}"
    for key in found.keys() - true.keys():
        name, _, _, status = found[key]
        if status != "stopped" or name.partition(":")[0] not in kept:
            yield f"stale: {found[key]}"


def _true(server: Scripted) -> Iterator[tuple[str, Entry]]:
    """Yield the tools expected of a running server; of a stopped server, the tools of its last listing."""
    for declared in server.definitions:
        definition = ToolDefinition.from_wire(json_text(declared))
        counts: dict[Encoding, int] = {encoding: count(definition.wire) for encoding, count in counters().items()}
        counts["heuristic"] = estimate_tool(server.server_id, definition)
        tool = IndexedTool(server.server_id, definition, digest(definition, DECLARED_NAME), counts)
        yield point_id(server.server_id, definition.name), _entry(tool, is_sick=server.mood != "good")


def _entry(tool: IndexedTool, *, is_sick: bool) -> Entry:
    # a server that does not answer is stale, then quarantined: when, is a matter of its backoff
    status = "stale or quarantined" if is_sick and tool.status != "stopped" else tool.status
    return tool.qualified_name, tool.digest, tuple(sorted(tool.token_counts.items())), status


def _wrong_sums(index: ToolIndex, fleet: Fleet) -> Iterator[str]:
    for server in fleet.all:
        record = index.server(server.server_id)
        if record is None:
            yield f"no record: {server.server_id}"
            continue
        is_stale = (
            record.stale_since is not None or record.last_listed_at is None
        )  # the latter since the index was lost
        if server.mood != "good" and server.is_up and not is_stale:
            yield f"not marked stale: {server.server_id}"
        if server.mood == "good" and (record.status == "running") != server.is_up:
            yield f"status: {server.server_id} is {record.status}"
        scope = Scope(servers=frozenset({server.server_id}), status=record.status)
        for encoding in ENCODINGS:
            summed = index.token_sum(scope, encoding)
            if record.status == "running" and (summed.tokens, summed.counted) != (
                record.tokens.get(encoding, 0), record.tool_count,
            ):  # fmt: skip
                yield f"sum: {server.server_id} {encoding}: {summed.tokens}, its record says {record.tokens}"
