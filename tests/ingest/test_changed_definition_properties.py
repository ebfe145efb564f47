"""For any change of definitions: cosmetic ones never count, all others do, and no crash serves one that is held."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.catalog import Scope, ToolDefinition
from shared.errors import LeaseHeld
from shared.intents.definitions import Definitions
from tests.chaos.interrupted import Crash, InterruptedIndex, Leases, LocksOfManyWorkers, Steps, WithLeases
from tests.support.builders import WritePath, changed, definition, listing, up, write_path
from tests.support.profiles import examples
from workers.indexing.changes import definition_digest
from workers.ingest import reconcile

# --- the digest ---

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
tools = st.fixed_dictionaries(
    {
        "name": st.just("t"),
        "description": texts.filter(str.strip),
        "inputSchema": st.dictionaries(texts, values, max_size=4),
    },
    optional={"title": texts, "icons": st.lists(values, max_size=2), "annotations": st.dictionaries(texts, values)},
)
blanks = st.text(" \t\n\r\u2003", min_size=1, max_size=3)


def digest_of(tool: dict[str, Any]) -> str:
    return definition_digest(ToolDefinition.from_wire(json.dumps(tool)))


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an object or a list with its values changed, and any other value as it is."""
    if isinstance(value, dict):
        return {key: change(item) for key, item in cast("dict[str, Any]", value).items()}
    return [change(item) for item in cast("list[object]", value)] if isinstance(value, list) else value


def reordered(value: Any, data: st.DataObject) -> Any:
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        value = {key: known[key] for key in data.draw(st.permutations(list(known)))}
    return mapped(value, lambda item: reordered(item, data))


def respaced(value: Any, blank: str) -> Any:
    """Return the value with `blank` at both ends of each text, and for each run of whitespace in it."""
    if isinstance(value, str):
        return blank + blank.join(value.split()) + blank
    return mapped(value, lambda item: respaced(item, blank))


@settings(max_examples=examples(200))
@given(tool=tools, title=texts, icons=st.lists(values, max_size=2), blank=blanks, data=st.data())
def test_reordered_keys_titles_icons_and_whitespace_never_count(
    tool: dict[str, Any], title: str, icons: list[Any], blank: str, data: st.DataObject
) -> None:
    cosmetic = {**respaced(reordered(tool, data), blank), "name": "t", "title": title, "icons": icons}
    annotations = cast("dict[str, Any]", cosmetic.get("annotations", {}))
    cosmetic["annotations"] = annotations | {"title": title}

    assert digest_of(reordered(cosmetic, data)) == digest_of(tool)


def plain(value: Any) -> Any:
    """Return the value as it counts: with single spaces, and with 1 and true apart."""
    return mapped(value, plain) if isinstance(value, dict | list) else repr(respaced(value, " "))


@settings(max_examples=examples(200))
@given(tool=tools, schema=st.dictionaries(texts, values, max_size=4), description=texts.filter(str.strip))
def test_every_other_change_of_a_schema_or_a_description_counts(
    tool: dict[str, Any], schema: dict[str, Any], description: str
) -> None:
    other = {**tool, "inputSchema": schema, "description": description}

    assert (digest_of(other) == digest_of(tool)) == (plain(kept(other)) == plain(kept(tool)))


def kept(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tool.items() if key not in ("title", "icons")}


# --- crashes ---

Action = tuple[str, Any]

lists = st.dictionaries(st.sampled_from("abc"), st.sampled_from(("x", "y", "z")))
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("list"), lists),
    st.tuples(st.just("list"), lists),
    st.tuples(st.just("crash"), st.integers(0, 7)),
    st.tuples(st.just("freeze"), st.integers(0, 7)),
    st.tuples(st.just("approve"), st.sampled_from("abc")),
    st.tuples(st.just("lose the index"), st.none()),
)


class _InterruptedIntents:
    """An intent store before and after each of whose writes of definitions something happens."""

    def __init__(self, store: Any, steps: Steps) -> None:
        self._store, self._steps = store, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def update_definitions(self, server_id: str, change: Callable[[Any], Definitions]) -> Any:
        self._steps.next()
        result = self._store.update_definitions(server_id, change)
        self._steps.next()
        return result


@dataclass
class _Approving:
    """A server under `approve`, and the definitions that an operator accepted, as name and description."""

    path: WritePath
    steps: Steps
    leases: Leases
    accepted: set[tuple[str, str]]

    def do(self, what: str, how: Any) -> None:
        match what:
            case "list":
                tools = (definition(name, text) for name, text in how.items())
                self.path.world.servers["s"] = listing(*tools)
                self.reconcile()
            case "approve":
                self.approve(how)
                self.reconcile()
            case "lose the index":
                self.path.index.delete("s", self.path.tool_names())
            case _:
                self.steps.interruptions = [*[lambda: None] * how, self.crash if what == "crash" else self.freeze]
                self.reconcile()
                self.steps.interruptions = []

    def crash(self) -> None:
        raise Crash

    def freeze(self) -> None:
        """Suspend this run until another one has taken its lease and ended, with the first tool gone from the list."""
        self.leases.lose("s")
        self.path.world.servers["s"] = listing(definition("a", "z"))
        self.reconcile()

    def approve(self, name: str) -> None:
        def accepted(found: Definitions | None) -> Definitions:
            return (found or Definitions(server_id="s")).accepting(frozenset(name))

        before, _ = self.path.deps.intents.update_definitions("s", accepted)
        if before and name in before.changed:
            current = ToolDefinition.from_wire(before.changed[name].current or "{}")
            # until the next change of this tool, no other definition of it is accepted
            self.accepted = {each for each in self.accepted if each[0] != name} | {(name, current.description)}

    def reconcile(self) -> None:
        self.path.deps.intents.record(changed(), due_in_s=0)
        self.path.clock.ahead_s += 86_400
        self.path.deps.intents.claim_due(10)
        with suppress(Crash, LeaseHeld):
            reconcile("s", self.path.deps)

    def served(self) -> set[tuple[str, str]]:
        tools = self.path.index.tools(Scope(), limit=100).tools
        return {(tool.definition.name, tool.definition.description) for tool in tools}

    def listed(self) -> set[tuple[str, str]]:
        found: Any = self.path.world.servers["s"]
        return {(tool.name, tool.description) for tool in found.tools}


@settings(max_examples=examples(60))
@given(st.lists(actions, max_size=12))
def test_no_crash_and_no_late_write_serves_a_definition_that_is_not_accepted(happened: list[Action]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        steps, leases = Steps(), Leases()
        path = write_path(Path(directory))
        path.index = InterruptedIndex(steps)
        intents: Any = WithLeases(_InterruptedIntents(path.deps.intents, steps), leases)
        path.deps = replace(path.deps, index=path.index, intents=intents, definition_changes="approve")
        path.deps = replace(path.deps, feature_locks=LocksOfManyWorkers())
        with closing(intents):
            path.world.servers["s"] = listing(definition("a", "x"))
            path.deps.intents.record(up(), due_in_s=0)
            server = _Approving(path, steps, leases, set())

            for action in happened:
                server.do(*action)
                assert server.served() <= server.accepted

            server.reconcile()
            server.reconcile()
            assert server.served() == server.listed() & server.accepted
