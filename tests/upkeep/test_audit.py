"""A record that states other sums than its tools have is found, and the tools are counted again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.catalog import ENCODINGS, FORMS, Encoding, Form, Scope, TokenSum
from shared.errors import IndexUnavailable
from shared.index.tools import ToolIndex
from shared.intents.intents import Intents
from tests.chaos.interrupted import Crash, InterruptedIndex, Steps
from tests.support.builders import WritePath, changed, definition, down, listing, up, write_path
from tests.support.fakes import FakeIndex
from tests.support.present import present
from tests.support.tampering import WRONG_BY, tamper_record, tamper_tool
from workers.ingest import reconcile
from workers.upkeep.audit import AuditResult, AuditRounds, audit, differences


@pytest.fixture
def path(tmp_path: Path) -> Generator[WritePath]:
    """A write path that has listed two servers."""
    path = interrupted(tmp_path, Steps())
    for server_id in ("s", "other"):
        path.world.servers[server_id] = listing(definition("a", server_id), definition("b", server_id))
        path.deps.intents.record(up(server_id), due_in_s=60)
        reconcile(server_id, path.deps)
    yield path
    path.deps.intents.close()


def interrupted(directory: Path, steps: Steps) -> WritePath:
    path, index = write_path(directory), InterruptedIndex(steps)
    return replace(path, index=index, deps=replace(path.deps, index=index))


def audited(path: WritePath, server_id: str = "s") -> AuditResult:
    return audit(server_id, path.index, path.deps.intents)


def look(path: WritePath, server_id: str = "s") -> None:
    reconcile(server_id, path.deps)


def resync(path: WritePath, server_id: str = "s") -> None:
    path.deps.intents.record(changed(server_id), due_in_s=60)
    look(path, server_id)


def everything(path: WritePath) -> dict[str, object]:
    """Return the counts, digests and statuses of all tools, and the sums of all records."""
    tools = {name: stored.tool for name, stored in path.index.points().items()}
    records = path.index.servers()
    sums = {record.server_id: (record.tool_count, record.tokens, record.model_tokens) for record in records}
    return {**tools, **sums}


Tamper = Callable[[FakeIndex, Encoding, Form], None]


def of_a_tool(index: FakeIndex, encoding: Encoding, form: Form) -> None:
    tamper_tool(index, "s:a", encoding, form)


def of_the_record(index: FakeIndex, encoding: Encoding, form: Form) -> None:
    tamper_record(index, "s", encoding, form)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("tamper", [of_a_tool, of_the_record])
def test_a_wrong_count_is_logged_and_the_tools_are_counted_again(
    path: WritePath, tamper: Tamper, encoding: Encoding, form: Form
) -> None:
    before = everything(path)
    tamper(path.index, encoding, form)

    with capture_logs() as logs:
        results = [audited(path, "other"), audited(path), audited(path)]

    assert results == ["equal", "differs", "skipped"]
    (line,) = logs
    assert (line["event"], line["log_level"], line["server"]) == ("counts_differ", "warning", "s")
    assert (line["encoding"], line["form"]) == (encoding, form)
    assert abs(line["stated"] - line["counted"]) == WRONG_BY
    assert line["tools_stated"] == line["tools_counted"] == 2
    look(path)
    assert everything(path) == before
    assert audited(path) == "equal"


def test_a_tool_that_the_index_lost_is_a_difference(path: WritePath) -> None:
    before = everything(path)
    path.index.delete("s", ["a"])

    found = differences("s", path.index)

    assert found
    assert {(difference.stated.counted, difference.counted.counted) for difference in found} == {(2, 1)}
    assert audited(path) == "differs"
    look(path)
    assert everything(path) == before


def test_a_tool_without_a_count_differs_from_a_counted_one(tmp_path: Path) -> None:
    path = write_path(tmp_path, failing=frozenset({"o200k_base"}))
    path.world.servers["s"] = listing(definition("a"))
    path.deps.intents.record(up(), due_in_s=60)
    look(path)
    assert audited(path) == "equal"
    record = present(path.index.server("s"))

    path.index.put_server(record.model_copy(update={"uncounted": {}}))

    found = differences("s", path.index)
    assert found
    assert {(difference.encoding, difference.stated, difference.counted) for difference in found} == {
        ("o200k_base", TokenSum(0, 1, 0), TokenSum(0, 0, 1))
    }


def test_a_replica_that_copied_a_wrong_count_is_counted_again_too(path: WritePath) -> None:
    tamper_tool(path.index, "s:a", "cl100k_base")
    path.world.servers["replica"] = path.world.servers["s"]
    path.deps.intents.record(up("replica"), due_in_s=60)
    look(path, "replica")
    assert differences("replica", path.index) == []

    audited(path)
    look(path)
    resync(path, "replica")
    audited(path, "replica")
    resync(path, "replica")

    scope = [Scope(servers=frozenset({server_id})) for server_id in ("s", "replica")]
    first, second = (path.index.token_sum(each, "cl100k_base") for each in scope)
    assert first == second
    assert first.tokens < WRONG_BY
    assert [differences(server_id, path.index) for server_id in ("s", "replica")] == [[], []]


def test_a_stopped_server_is_counted_again_when_it_runs(path: WritePath) -> None:
    before = everything(path)
    path.deps.intents.record(down(), due_in_s=60)
    look(path)
    assert audited(path) == "equal"
    tamper_tool(path.index, "s:a", "cl100k_base")

    assert audited(path) == "differs"
    look(path)
    assert audited(path) == "skipped"
    path.deps.intents.record(up(), due_in_s=60)
    look(path)

    assert everything(path) == before


def test_a_server_without_an_intent_is_counted_again_when_it_is_announced(path: WritePath, tmp_path: Path) -> None:
    before = everything(path)
    tamper_tool(path.index, "s:a", "cl100k_base")
    (tmp_path / "new").mkdir()
    forgetful = replace(path, deps=replace(path.deps, intents=write_path(tmp_path / "new").deps.intents))

    assert audited(forgetful) == "differs"
    resync(path)

    assert everything(path) == before


def test_no_server_is_compared_while_a_run_holds_its_lease_or_a_reconciliation_is_due(path: WritePath) -> None:
    tamper_tool(path.index, "s:a", "cl100k_base")
    tampered = everything(path)

    with path.deps.intents.lease("s"):
        held = audited(path)
    path.deps.intents.record(changed(), due_in_s=60)
    due = audited(path)

    assert (held, due) == ("skipped", "skipped")
    assert everything(path) == tampered
    look(path)
    assert audited(path) == "differs"


def test_a_server_without_a_listing_is_not_compared(path: WritePath) -> None:
    path.deps.intents.record(up("new"), due_in_s=60)
    record = present(path.index.server("s"))
    path.index.put_server(record.model_copy(update={"server_id": "new", "last_listed_at": None}))

    assert [differences(server_id, path.index) for server_id in ("new", "unknown")] == [None, None]


CHANGES: dict[str, Callable[[WritePath], object]] = {
    "tools change": lambda path: path.world.servers.update(s=listing(definition("b", "new"), definition("c"))),
    "a tool is gone": lambda path: path.world.servers.update(s=listing(definition("b", "s"))),
    "groups change": lambda path: path.deps.intents.record(up(groups=["dev"]), due_in_s=60),
    "the server stops": lambda path: path.deps.intents.record(down(), due_in_s=60),
    "the server is renamed": lambda path: path.world.servers.update(
        s=listing(definition("a", "s"), definition("b", "s"), declared_name="renamed")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_difference_is_found_at_any_step_of_a_reconciliation(tmp_path: Path, change: str) -> None:
    steps = Steps()
    path = interrupted(tmp_path, steps)
    path.world.servers["s"] = listing(definition("a", "s"), definition("b", "s"))
    path.deps.intents.record(up(), due_in_s=60)
    look(path)
    path.deps.intents.record(changed(), due_in_s=60)
    CHANGES[change](path)
    found: list[object] = []

    steps.interruptions = [lambda: found.append(differences("s", path.index))] * 20
    look(path)

    assert 2 <= len(found) < 20
    assert not any(found)
    assert differences("s", path.index) == []


def test_an_audit_that_was_killed_at_any_step_is_finished_by_the_next(tmp_path: Path) -> None:
    killed = 0
    for step in count():
        directory = tmp_path / str(step)
        directory.mkdir()
        steps = Steps()
        path = interrupted(directory, steps)
        path.world.servers["s"] = listing(definition("a"), definition("b"))
        path.deps.intents.record(up(), due_in_s=60)
        look(path)
        before = everything(path)
        tamper_tool(path.index, "s:a", "cl100k_base")

        steps.interruptions = [*[lambda: None] * step, crash]
        with suppress(Crash):
            audited(path)
        was_killed = not steps.interruptions
        steps.interruptions = []
        if step == 0:
            assert differences("s", path.index), "nothing is written before the digests are cleared"
            assert audited(path) == "differs"
        resync(path)

        assert everything(path) == before, f"killed at step {step}"
        assert differences("s", path.index) == []
        killed += was_killed
        if not was_killed:
            break
    assert killed == 2


def crash() -> None:
    raise Crash


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[AuditResult]:
    """Return the result of each audit of a round."""
    found: list[AuditResult] = []

    def noted(server_id: str, index: ToolIndex, intents: Intents) -> AuditResult:
        found.append(audit(server_id, index, intents))
        return found[-1]

    monkeypatch.setattr("workers.upkeep.audit.audit", noted)
    return found


def test_a_round_compares_every_server_once_at_one_server_a_second(path: WritePath, results: list[AuditResult]) -> None:
    tamper_tool(path.index, "s:a", "cl100k_base")
    sweeps = AuditRounds(0.5)

    seen: list[int] = []
    for _ in range(8):
        sweeps.continue_round(path.index, path.deps.intents)
        seen.append(len(results))

    assert seen == [0, 1, 1, 2, 2, 3, 3, 4]
    assert Counter(results) == {"equal": 2, "differs": 1, "skipped": 1}


def test_a_rare_sweep_compares_more_servers_and_none_twice(path: WritePath, results: list[AuditResult]) -> None:
    AuditRounds(5.0).continue_round(path.index, path.deps.intents)

    assert results == ["equal", "equal"]


def test_a_sweep_starts_no_comparison_after_its_time(path: WritePath, results: list[AuditResult]) -> None:
    now_s = 0.0

    class Slow(FakeIndex):
        def server(self, server_id: str) -> None:
            nonlocal now_s
            now_s += 2.0

        def revisions(self, *, newer_than: int = 0) -> dict[str, int]:
            return {f"s{number}": 1 for number in range(10)}

    sweeps = AuditRounds(5.0, clock_s=lambda: now_s)
    for _ in range(3):
        sweeps.continue_round(Slow(), path.deps.intents)

    assert results == ["skipped"] * 3


def test_a_round_goes_on_after_an_index_that_did_not_answer(path: WritePath, results: list[AuditResult]) -> None:
    sweeps = AuditRounds(1.0)
    path.index.is_down = True
    with pytest.raises(IndexUnavailable):
        sweeps.continue_round(path.index, path.deps.intents)
    path.index.is_down = False

    for _ in range(2):
        sweeps.continue_round(path.index, path.deps.intents)

    assert results == ["equal", "equal"]
