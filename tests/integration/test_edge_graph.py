"""The embedded index gets its graph from another process, and loses nothing by it, whoever is killed when."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_edge import UpdateOperation  # noqa: TID251  # the shard under test takes its operations
from structlog.testing import capture_logs

from shared.catalog import Scope, Status
from shared.errors import GraphNotBuilt, GraphOvertaken
from shared.index.contract import ToolIndex
from shared.index.edge import open_edge
from shared.index.edge_build import Builder, build_here
from shared.index.edge_config import searching
from shared.index.edge_graph import Graphs
from shared.index.edge_place import POINTER, Current, current
from shared.index.edge_shard import MAX_MEANWHILE, LiveShard
from shared.index.points import VectorSchema
from tests.fakes import DIMENSION, FakeIndex, asking, closest, embedded, make_tool
from tests.support.profiles import examples
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TOOLS = 400

WRITE_FOR_EVER = """
import sys
from itertools import count
from pathlib import Path
import structlog
from shared.index.edge import open_edge
from shared.index.edge_graph import Graphs
from tests.fakes import DIMENSION, embedded, make_tool

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
index = open_edge(Path(sys.argv[1]), "tools", DIMENSION, graphs=Graphs(from_points=20, quiet_s=0))
for i in count(int(sys.argv[2])):
    index.upsert([embedded(make_tool("s", f"t{i}", tokens=1), i)])
    print(i, flush=True)
"""

Step = Callable[[ToolIndex], None]


def _write(index: ToolIndex, tools: int = TOOLS) -> None:
    index.upsert([embedded(make_tool("s", f"t{i}", tokens=1), i) for i in range(tools)])


def _builders(directory: Path) -> list[psutil.Process]:
    """Return the processes that build a graph for an index in this directory; other tests' may run beside them."""
    return [child for child in psutil.Process().children() if _is_building(child, directory)]


def _is_building(process: psutil.Process, directory: Path) -> bool:
    try:
        return any(argument.startswith(str(directory)) for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _has_graph(directory: Path) -> bool:
    return current(directory / "tools") != Current()


def _place(directory: Path) -> str:
    return current(directory / "tools").directory


class HeldBuilder(Builder):
    """Builds when it is told to."""

    def __init__(self, schema: VectorSchema) -> None:
        super().__init__(schema)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def build(self, shard: Path) -> None:
        self.has_begun.set()
        self.may_go_on.wait(60)
        super().build(shard)


class SuspendedBuilder(Builder):
    """Builds the first time in a process that stands still as soon as it is there."""

    has_begun = False

    def _start(self, shard: Path) -> subprocess.Popen[str]:
        child = super()._start(shard)
        if not self.has_begun:
            self.has_begun = True
            psutil.Process(child.pid).suspend()
        return child


def _held() -> tuple[Graphs, list[HeldBuilder]]:
    made: list[HeldBuilder] = []

    def make(schema: VectorSchema) -> HeldBuilder:
        made.append(HeldBuilder(schema))
        return made[-1]

    return Graphs(from_points=TOOLS, quiet_s=0, make_builder=make), made


def test_an_index_that_grew_gets_a_graph_and_finds_the_same(tmp_path: Path) -> None:
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=Graphs(TOOLS, quiet_s=0))) as index:
        _write(index, TOOLS - 1)
        exact = [closest(index, asking(seed), Scope(), 10) for seed in range(20)]
        assert not _has_graph(tmp_path)

        _write(index, TOOLS)
        eventually(lambda: _has_graph(tmp_path), within_s=60)
        found = [closest(index, asking(seed), Scope(), 10) for seed in range(20)]

    assert current(tmp_path / "tools").points == TOOLS
    assert found == exact


def test_the_graph_is_there_after_a_restart_and_nothing_else_is(tmp_path: Path) -> None:
    graphs = Graphs(TOOLS, quiet_s=0)
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        _write(index)
        eventually(lambda: _has_graph(tmp_path), within_s=60)
    place = _place(tmp_path)
    (tmp_path / "tools" / "graph-of-a-killed-process").mkdir()

    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        assert len(index.states("s")) == TOOLS

    assert {each.name for each in (tmp_path / "tools").iterdir()} == {place, POINTER}


def test_a_small_index_gets_no_graph(tmp_path: Path) -> None:
    graphs, builders = _held()
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        for _ in range(3):
            _write(index, TOOLS - 1)

    assert not any(builder.has_begun.is_set() for builder in builders)


def test_an_index_that_was_large_before_there_were_graphs_gets_one_when_it_is_opened(tmp_path: Path) -> None:
    with closing(open_edge(tmp_path, "tools", DIMENSION)) as index:
        _write(index)

    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=Graphs(TOOLS, quiet_s=0))):
        eventually(lambda: _has_graph(tmp_path), within_s=60)


def test_while_a_graph_is_built_the_index_answers_and_is_written(tmp_path: Path) -> None:
    graphs, builders = _held()
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        _write(index)
        eventually(lambda: any(each.has_begun.is_set() for each in builders))
        (builder,) = (each for each in builders if each.has_begun.is_set())
        late = make_tool("late", "t", tokens=1)

        index.upsert([embedded(late, 7)])
        index.delete("s", ["t0"])

        assert closest(index, asking(7), Scope(servers=frozenset({"late"})), 3) == [late]
        assert "t0" not in index.states("s")
        builder.may_go_on.set()
        eventually(lambda: _has_graph(tmp_path), within_s=60)
        assert closest(index, asking(7), Scope(servers=frozenset({"late"})), 3) == [late]
        assert "t0" not in index.states("s")


def test_closing_the_index_ends_a_building(tmp_path: Path) -> None:
    graphs = Graphs(TOOLS, quiet_s=0, make_builder=SuspendedBuilder)
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        _write(index)
        eventually(lambda: _builders(tmp_path), within_s=60)

    assert _builders(tmp_path) == []


def test_a_building_whose_process_is_killed_leaves_the_index_as_it_was_and_is_tried_again(tmp_path: Path) -> None:
    graphs = Graphs(TOOLS, quiet_s=0, make_builder=SuspendedBuilder)
    with capture_logs() as logs, closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        _write(index)
        eventually(lambda: _builders(tmp_path), within_s=60)
        _builders(tmp_path)[0].kill()
        eventually(lambda: logs, within_s=60)

        assert [each["event"] for each in logs] == ["index_graph_not_built"]
        assert len(index.states("s")) == TOOLS
        assert list((tmp_path / "tools").glob("graph-*")) == []
        _write(index, 2 * TOOLS)
        eventually(lambda: _has_graph(tmp_path), within_s=60)


def test_a_graph_that_too_much_was_written_beside_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    schema = VectorSchema(DIMENSION, ("dense_name", "dense_text"), ("bm25",))
    with closing(LiveShard(tmp_path / "tools", searching(schema))) as shard:

        def write_much(_: Path) -> None:
            shard.update(UpdateOperation.delete_points([]), points=MAX_MEANWHILE + 1)

        with pytest.raises(GraphOvertaken, match="were written while it was built"):
            shard.exchange(write_much)

        assert not shard.has_graph
        assert list((tmp_path / "tools").glob("graph-*")) == []
        assert shard.exchange(partial(build_here, schema=schema)).repeated == 0


def test_a_graph_that_was_overtaken_by_writes_is_built_once_they_end(tmp_path: Path) -> None:
    tried = queue.Queue[Path]()

    class Overtaken(Builder):
        def build(self, shard: Path) -> None:
            tried.put(shard)
            if tried.qsize() == 1:
                raise GraphOvertaken("as the shard says when too much was written")
            super().build(shard)

    graphs = Graphs(TOOLS, quiet_s=0, make_builder=Overtaken)
    with closing(open_edge(tmp_path, "tools", DIMENSION, graphs=graphs)) as index:
        _write(index)
        eventually(lambda: _has_graph(tmp_path), within_s=60)


@pytest.mark.slow
def test_every_confirmed_write_survives_kills_while_graphs_are_built_and_taken(tmp_path: Path) -> None:
    written, places = 0, set[str]()
    for is_taken in (False, True, False, True):
        confirmed, children = _killed(tmp_path, written, is_taken)
        with closing(open_edge(tmp_path, "tools", DIMENSION)) as index:
            found = index.states("s").keys()
        places.add(_place(tmp_path))

        assert {f"t{i}" for i in range(confirmed + 1)} <= found
        assert {each.name for each in (tmp_path / "tools").glob("graph-*")} <= places
        if sys.platform == "linux":
            eventually(partial(_are_gone, children))
        written = confirmed + 1

    assert len(places) > 1


def _is_building_held(parent: psutil.Process) -> bool:
    """Hold the building of a graph; False where none is under way, and the one after has to be waited for."""
    for child in parent.children():
        with suppress(psutil.NoSuchProcess):
            if sys.platform != "linux":
                return True
            if child.nice() > 0:  # from then on it ends with its parent, even when it is stopped
                child.suspend()
                return True
    return False


def _are_gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() for process in processes)


def _killed(directory: Path, first: int, is_taken: bool) -> tuple[int, list[psutil.Process]]:
    """Kill a process that writes, while it builds a graph or just after it took one.

    Return the last write that it confirmed, and the processes that built for it.
    """
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(directory), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before, itself = _place(directory), psutil.Process(process.pid)
        if is_taken:
            eventually(itself.children, within_s=60)
        else:
            eventually(partial(_is_building_held, itself), within_s=60)
        children = itself.children()
        # nobody reads what it says meanwhile, so it writes some thousands and then waits
        eventually(lambda: not is_taken or _place(directory) != before, within_s=60)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        return int(process.stdout.read().split()[-1]), children


servers = st.sampled_from(("a", "b"))
names = st.sampled_from([f"t{i}" for i in range(6)])
statuses: st.SearchStrategy[Status] = st.sampled_from(("running", "stopped"))


def _upserting(server: str, name: str, tokens: int, seed: int) -> Step:
    return lambda index: index.upsert([embedded(make_tool(server, name, "", tokens), seed)])


def _deleting(server: str, some: list[str]) -> Step:
    return lambda index: index.delete(server, some)


def _assigning(server: str, status: Status) -> Step:
    return lambda index: index.assign(server, status=status, groups=frozenset({status}))


steps: st.SearchStrategy[list[Step]] = st.lists(
    st.builds(_upserting, servers, names, st.integers(0, 9), st.integers(0, 99))
    | st.builds(_deleting, servers, st.lists(names, max_size=3))
    | st.builds(_assigning, servers, statuses),
    max_size=12,
)


class Exchanged:
    """An index whose shard is exchanged whenever it is asked to, and a twin that gets the same writes."""

    def __init__(self, directory: Path) -> None:
        waiting = self._waiting = queue.Queue[list[Step]]()
        write, self.failures = self.write, list[BaseException]()
        failures = self.failures

        class WritingBuilder(Builder):
            def build(self, shard: Path) -> None:
                try:
                    write(waiting.get(timeout=60))
                    build_here(shard, VectorSchema(DIMENSION, ("dense_name", "dense_text"), ("bm25",)))
                except BaseException as error:
                    failures.append(error)
                    raise GraphNotBuilt("see failures") from error

        self._directory, self.twin, self._numbers = directory, FakeIndex(), count()
        self.index = open_edge(directory, "tools", DIMENSION, graphs=Graphs(1, quiet_s=0, make_builder=WritingBuilder))

    def write(self, written: list[Step]) -> None:
        for step in written:
            step(self.twin)
            step(self.index)

    def exchange(self, during: list[Step]) -> None:
        """Return when a shard has taken the place of another one, with these writes in between."""
        place = _place(self._directory)
        self._waiting.put(during)
        # a point that was not there before makes a graph due, whatever else was written
        self.write([_upserting("c", f"t{next(self._numbers)}", 1, 1)])
        eventually(lambda: _place(self._directory) != place or self.failures, within_s=60)
        assert self.failures == []

    def close(self) -> None:
        self._waiting.put([])
        self.index.close()


@pytest.fixture
def exchanged(tmp_path: Path) -> Iterator[Exchanged]:
    with closing(Exchanged(tmp_path)) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(400)  # each example waits for a disk several times
# all examples are to share an index, which goes on building after the last one until it is closed
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=steps, during=steps, after=steps)
def test_an_exchange_keeps_all_writes_before_during_and_after_it(
    exchanged: Exchanged, before: list[Step], during: list[Step], after: list[Step]
) -> None:
    index, twin = exchanged.index, exchanged.twin

    exchanged.write(before)
    exchanged.exchange(during)
    exchanged.write(after)

    assert {server: index.states(server) for server in "abc"} == {server: twin.states(server) for server in "abc"}
    assert index.token_sum(Scope(), "cl100k_base") == twin.token_sum(Scope(), "cl100k_base")
