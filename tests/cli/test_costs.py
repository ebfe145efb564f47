"""Which servers `toolscale costs` lists, and how it adds their tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.recount_numbers import tokens_by_form
from query.tools.registry import BUILTIN_TOOLS
from shared.catalog import Encoding, ToolDefinition
from shared.errors import ConfigInvalid, CountFailed
from shared.settings import load_settings
from shared.text.tokens import Counter, estimate_tool
from tests.support.client_homes import Write
from tests.support.profiles import examples
from toolscale import costs
from toolscale.costs import (
    COLUMNS,
    Cost,
    CostReport,
    ServerCost,
    as_object,
    comparison,
    cost_of,
    own_cost,
    servers_of,
    total_of,
)

TIME = {"command": "uvx", "args": ["mcp-server-time"]}


def found(**overrides: object) -> tuple[set[str], list[Path]]:
    servers = servers_of(load_settings(**overrides))
    return set(servers.config.targets), list(servers.files)


def test_a_named_file_is_read_alone_and_needs_servers(write: Write) -> None:
    write("data/mcp.json", {"mcpServers": {"mine": TIME}})
    named = write("other.json", {"servers": {"other": TIME}})

    assert found(mcp_config=named) == ({"other"}, [named])
    with pytest.raises(ConfigInvalid, match="mcpServers"):
        found(mcp_config=write("empty.json", {}))


def test_the_file_of_serve_precedes_the_files_of_clients(write: Write) -> None:
    client = write(".cursor/mcp.json", {"mcpServers": {"cursor": TIME}})
    assert found() == ({"cursor"}, [client])

    own = write("data/mcp.json", {"mcpServers": {"mine": TIME}})
    assert found() == ({"mine"}, [own])


def test_a_projects_commands_are_not_run_and_equal_servers_of_clients_count_once(write: Write) -> None:
    write("project/.mcp.json", {"mcpServers": {"project": TIME}})
    write("project/.cursor/mcp.json", {"mcpServers": {"project": TIME}})
    write(".cursor/mcp.json", {"mcpServers": {"time": TIME, "docs": {"url": "http://127.0.0.1:1/a"}}})
    write(".claude.json", {"mcpServers": {"time": TIME, "docs": {"url": "http://127.0.0.1:1/b"}}})

    servers, files = found()

    assert servers == {"time", "docs", "docs-cursor"}
    assert [path.name for path in files] == [".claude.json", "mcp.json"]


def test_a_machine_without_files_has_no_servers(home: Path) -> None:
    assert found() == (set(), [])


TOOLS = st.fixed_dictionaries(
    {"name": st.text(min_size=1, max_size=20)},
    optional={
        "title": st.text(max_size=10),
        "description": st.text(max_size=60),
        "inputSchema": st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3),
        "annotations": st.just({"readOnlyHint": True}),
    },
)


@settings(max_examples=examples(50))
@given(st.lists(st.lists(TOOLS, max_size=4), max_size=4))
def test_the_total_is_the_sum_of_independent_counts(servers: list[list[dict[str, Any]]]) -> None:
    costs = [cost_of("s", map(_definition, tools), "cl100k_base") for tools in servers]

    assert [cost.tokens for cost in costs] == [tokens_by_form(tools) for tools in servers]
    everything = [tool for tools in servers for tool in tools]
    assert total_of(costs) == Cost(len(everything), tokens_by_form(everything))


def test_the_heuristic_has_one_estimate_for_all_columns() -> None:
    definition = _definition({"name": "t", "description": "Reads a file", "title": "Read"})

    cost = cost_of("files", [definition], "heuristic")

    assert cost.tokens == dict.fromkeys(COLUMNS, estimate_tool("files", definition))


def test_a_tool_that_cannot_be_counted_is_in_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(text: str) -> int:
        if "broken" in text:
            raise CountFailed("no count")
        return 1

    def broken(_encoding: Encoding) -> Counter:
        return count

    monkeypatch.setattr(costs, "counter", broken)

    cost = cost_of("s", map(_definition, [{"name": "good"}, {"name": "broken"}]), "cl100k_base")

    assert cost == Cost(2, dict.fromkeys(COLUMNS, 1), uncounted=1)


@pytest.mark.parametrize(("total", "share"), [(10**6, "less"), (1, "more"), (0, None)])
def test_the_sentence_states_a_loss_as_well(total: int, share: str | None) -> None:
    own = own_cost("cl100k_base")
    servers = [ServerCost("s", Cost(1, dict.fromkeys(COLUMNS, total)))]

    sentence = comparison(CostReport("cl100k_base", (), servers, own))

    assert f": {own.tokens['generic']:,} tokens against {total:,}" in sentence
    assert [word for word in ("less", "more") if f"% {word} " in sentence] == ([share] if share else [])


def test_an_estimate_is_labelled_in_both_outputs() -> None:
    report = CostReport("heuristic", (), [], own_cost("heuristic"))

    assert "heuristic, an estimate" in comparison(report)
    assert as_object(report)["estimated"] is True


def test_the_definitions_of_toolscale_are_those_of_all_built_in_tools() -> None:
    assert own_cost("cl100k_base").tools == len(BUILTIN_TOOLS)


def _definition(tool: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition.from_wire(json.dumps(tool, ensure_ascii=False, separators=(",", ":")))
