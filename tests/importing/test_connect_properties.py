"""Editing a client's file changes one entry, whatever else the file holds and however it is written."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import ConfigInvalid
from toolscale.mcp_clients.clients import Client, entry_for
from toolscale.mcp_clients.editing import edited, syntax_of

OWN = entry_for(Client.CODEX, ["/opt/tool scale/bin", "serve", "--data-dir", "/home/é\\x"])

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6)
names = st.one_of(texts.filter(bool), st.sampled_from(["a.b", "a b", "{", "//", "/*", "x]", '"', "#", "null"]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries(
    {"command": st.just("x"), "args": st.lists(texts, max_size=2)}, optional={"env": st.dictionaries(names, texts)}
)
servers = st.dictionaries(names, entries, max_size=3)
outside = st.dictionaries(names.filter(lambda name: name != "mcpServers"), values, max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    document = draw(outside)
    return {"mcpServers": draw(servers), **document} if draw(st.booleans()) else document


@st.composite
def commented(draw: st.DrawFn) -> str:
    """Return a document as a person writes it: with comments, trailing commas, and any indentation."""
    text = json.dumps(draw(documents()), indent=draw(st.sampled_from(["  ", "\t", "    "])), ensure_ascii=False)
    lines = text.split("\n")
    notes = st.sampled_from(["", "", " // it's } here", ' /* { "a": */', "  "])
    lines = [line + draw(notes) for line in lines]
    return draw(st.sampled_from(["", "// mine\n", "\ufeff"])) + "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def put_and_dropped(path: Path, text: str, key: str) -> tuple[str, str]:
    put = edited(path, text, key, {"toolscale": OWN})
    assert edited(path, put, key, {"toolscale": OWN}) == put
    return put, edited(path, put, key, {}, ["toolscale"])


@given(documents(), st.sampled_from([None, 0, 2, "\t"]), st.booleans())
def test_any_json_survives(document: dict[str, Any], indent: Any, is_dos: bool) -> None:
    text = json.dumps(document, indent=indent)
    text = text.replace("\n", "\r\n") if is_dos else text

    put, dropped = put_and_dropped(Path("f.json"), text, "mcpServers")

    assert json.loads(put) == {**document, "mcpServers": {**document.get("mcpServers", {}), "toolscale": OWN}}
    assert json.loads(dropped) == {"mcpServers": {}, **document}
    if document.get("mcpServers"):
        assert dropped == text
    assert put.count("\n") == put.count("\r\n") or "\r\n" not in text


@settings(deadline=None)  # json5 is slow
@given(commented())
def test_comments_survive(text: str) -> None:
    put, dropped = put_and_dropped(Path("f.json"), text, "mcpServers")

    assert [put.count(note) for note in ("// it's", "/* {", "// mine")] == [
        text.count(note) for note in ("// it's", "/* {", "// mine")
    ]
    if json.loads(json.dumps(syntax_of(Path("f.json")).parse(text.removeprefix("\ufeff")))).get("mcpServers"):
        assert dropped == text


def test_a_comment_before_the_last_entry_does_not_swallow_what_follows() -> None:
    text = '{"mcpServers": {"a": {}, // of b\n"b": {}}, "more": 1}'

    dropped = edited(Path("f.json"), text, "mcpServers", {}, ["b"])

    assert syntax_of(Path("f.json")).parse(dropped) == {"mcpServers": {"a": {}}, "more": 1}
    assert "// of b" in dropped


@given(documents(), st.data())
def test_any_servers_leave_and_return(document: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(document, indent=2)
    present = document.get("mcpServers", {})
    moved = data.draw(st.sets(st.sampled_from(sorted(present)))) if present else set[str]()

    without = edited(Path("f.json"), text, "mcpServers", {"toolscale": OWN}, sorted(moved))
    again = edited(Path("f.json"), without, "mcpServers", {name: present[name] for name in moved}, ["toolscale"])

    assert not moved & json.loads(without)["mcpServers"].keys()
    assert json.loads(again) == {"mcpServers": {}, **document}


@given(servers, st.sampled_from(["", "model = 'x' # mine\n", "# top\n[tui]\na = 1\n", "x = [\n  1,\n]"]), st.booleans())
def test_any_toml_survives(servers: dict[str, Any], before: str, has_more: bool) -> None:
    rendered = syntax_of(Path("f.toml")).rendered("mcp_servers", servers)
    text = "\n".join(filter(None, [before, rendered, "# more\n[more]\nb = 2\n" if has_more else ""]))
    document = tomllib.loads(text)

    put, dropped = put_and_dropped(Path("f.toml"), text, "mcp_servers")

    assert document.get("mcp_servers", {}) == servers
    assert tomllib.loads(put) == {**document, "mcp_servers": {**servers, "toolscale": OWN}}
    assert dropped == text + ("" if text.endswith("\n") or not text else "\n")
    for name in servers:
        kept = edited(Path("f.toml"), text, "mcp_servers", {}, [name])
        assert all(line in kept for line in ("# top", "# more", "' # mine") if line in text)


@given(
    st.dictionaries(st.sampled_from(["run", "far-away", "x"]), entries, max_size=3),
    st.sampled_from(["", "A: 1 # mine\n", "B:\n- extensions\n"]),
    st.sampled_from(["", "C: d\n"]),
)
def test_any_yaml_survives(servers: dict[str, Any], before: str, after: str) -> None:
    text = before + (syntax_of(Path("f.yaml")).rendered("extensions", servers)) + after
    document = yaml.safe_load(text)

    put, dropped = put_and_dropped(Path("f.yaml"), text, "extensions")

    assert yaml.safe_load(put) == {**document, "extensions": {**servers, "toolscale": OWN}}
    assert (yaml.safe_load(dropped)["extensions"] or {}) == servers
    assert dropped.startswith(before)
    assert dropped.endswith(after)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.toml", "mcp_servers.a.command = 'x'\n[mcp_servers]\n"),
        ("f.toml", "mcp_servers = {}\n"),
        ("f.yaml", "extensions: {a: {type: builtin}}\n"),
        ("f.yaml", "{extensions: {}}\n"),
    ],
)
def test_a_form_that_would_not_survive_is_refused(name: str, text: str) -> None:
    key = {".toml": "mcp_servers", ".yaml": "extensions"}[Path(name).suffix]

    with pytest.raises(ConfigInvalid):
        edited(Path(name), text, key, {"toolscale": OWN})


@pytest.mark.parametrize("client", Client)
def test_an_entry_is_plain_json(client: Client) -> None:
    entry = entry_for(client, ["/bin/toolscale", "serve"])

    assert json.loads(json.dumps(entry)) == entry
