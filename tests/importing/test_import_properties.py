"""Importing twice is importing once, whatever clients and file hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

from shared.server_ids import server_id
from toolscale.mcp_clients.clients import Client, ClientFile
from toolscale.mcp_clients.entries import OPERATORS_OWN, definition
from toolscale.mcp_clients.find import FoundServer
from toolscale.mcp_clients.merge import OnConflict, merge

names = st.sampled_from(["git", "git-cursor", "git-cursor-2", "My Server", "My:Server", "docs"])
entries = st.fixed_dictionaries(
    {"command": st.sampled_from(["x", "y", "z"])},
    optional={"env": st.sampled_from([{}, {"A": "1"}]), "groups": st.just(["dev"]), "disabled": st.booleans()},
)
files = st.dictionaries(names, st.one_of(entries, st.just("broken")), max_size=5)
modes = st.sampled_from(get_args(OnConflict))


@st.composite
def findings(draw: st.DrawFn) -> FoundServer:
    place = ClientFile(Path("/home/ann/file.json"), draw(st.sampled_from([None, Client.CURSOR, Client.VSCODE])))
    project = draw(st.sampled_from([None, Path("/projects/cursor"), Path("/projects/web")]))
    return FoundServer(server_id(draw(names)), {"command": draw(st.sampled_from(["x", "y", "z"]))}, place, project)


@given(files, st.lists(findings(), max_size=8), modes, modes)
def test_importing_again_changes_nothing(
    file: dict[str, Any], found: list[FoundServer], first: Any, again: Any
) -> None:
    once = merge(file, found, first)
    twice = merge(once.servers, found, first)

    assert twice.servers == once.servers
    assert {outcome.became for outcome in twice.outcomes} <= {"there already", "kept out"}
    if first == "rename":
        assert merge(once.servers, found, again).servers == once.servers


@given(files, st.lists(findings(), max_size=8), modes)
def test_nothing_of_the_file_is_lost_and_everything_found_is_accounted_for(
    file: dict[str, Any], found: list[FoundServer], mode: Any
) -> None:
    merged = merge(file, found, mode)

    assert [outcome.server for outcome in merged.outcomes] == found
    replaced = {outcome.name for outcome in merged.outcomes if outcome.became == "replaced"}
    for name, entry in file.items():
        if server_id(name) not in replaced:
            assert merged.servers[name] == entry
        elif isinstance(entry, dict):
            assert {key: merged.servers[name].get(key) for key in OPERATORS_OWN if key in entry} == {
                key: entry[key] for key in OPERATORS_OWN if key in entry
            }
    by_id = {server_id(name): entry for name, entry in merged.servers.items()}
    for outcome in merged.outcomes:
        if outcome.became != "kept out":
            assert definition(by_id[outcome.name]) == definition(outcome.server.entry)
