"""Peers: which tools do other systems find on the same sets, and how long do they take among up to 100,000 tools?

Each system runs in a process and an environment of its own, with pinned versions from the package index, in `.peers`.
A client in the same process calls its MCP tool, without a transport; `peer_systems` has a module for each.
For the latency all systems are up at once, and answer one after the other, query by query, in an order that rotates, so
that other load meets all of them. A system that needs more than a minute for a size's queries gets fewer.
To reach a size the corpus is repeated: copies of a tool differ only in their server, and share the tool's vector.
`--vectors DIR` keeps the vectors of tools, and a second run takes minutes.

- This is a comparison by the makers of one of the compared. The first table says what each system was given.
- All that take a model have the same one, which is bundled with Toolscale and trained for it. It reads 64 tokens of a
  tool and 512 of a query. toolsieve and tool-compass were made for larger ones, which have to be downloaded, and may
  find more with those.
- The weights of Toolscale's fusion were chosen on these sets, the peers' were not; the set *toolsieve* was made by the
  authors of toolsieve.
- Systems that take one text at a time were asked the steps of a task one by one, and the answers merged in turns.
- Toolscale alone may say that nothing fits, which counts as having found nothing.
- FastMCP answers with ten definitions, Toolscale with those or with lines within its token budget and with what that
  saved, toolsieve with one definition and lines, tool-compass with lines.
- The tools were put in without servers to list them. Toolscale's are then on disk, with their tokens counted;
  tool-compass keeps an index in a file, the others keep everything in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from benchmarks.corpora import ToolKey, read_queries, read_servers
from benchmarks.harness import DATA, ROOT, Figures, Watches, command, keep, kept, made, percentile, report, table
from benchmarks.retrieval import QUICK, SETS, Evaluation, QuerySet, score_cell
from toolscale.demo.servers import PythonEnvironment

K = 10
PARTS = ("recall", "latency")
SIZES = (1_000, 10_000, 100_000)
QUERIES = 60
# A longer query would be searched by its clauses as well.
MAX_WORDS = 15
ENVIRONMENTS = ROOT / ".peers"
LOCKS = Path(__file__).parent / "peer_systems" / "environments"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system: the module that asks it, the package and lock of its environment, and what it was given.

    Toolscale itself has no package here, and runs in the environment of the benchmark.
    """

    name: str
    module: str
    package: str | None
    given: str

    @property
    def lock(self) -> Path:
        """Return the file that pins its environment."""
        return LOCKS / f"{self.package}.lock"

    @property
    def version(self) -> str:
        """Return the version that is pinned; empty for Toolscale itself."""
        pins = (LOCKS / f"{self.package}.in").read_text(encoding="utf-8").split() if self.package else []
        return next((pin.partition("==")[2] for pin in pins if pin.startswith(f"{self.package}==")), "")


TOOLSCALE = Candidate("Toolscale", "toolscale_itself", None, "its defaults; a whole task or its steps in one call")
CANDIDATES = (
    TOOLSCALE,
    Candidate(
        "FastMCP BM25 search",
        "fastmcp_bm25",
        "fastmcp",
        "its defaults, ten results; tools carry their server's name in front, as mounted servers' tools do",
    ),
    Candidate(
        "toolsieve",
        "toolsieve",
        "toolsieve",
        "its defaults, ten results, the bundled model: its own, BAAI/bge-small-en-v1.5, has to be downloaded",
    ),
    Candidate(
        "tool-compass",
        "tool_compass",
        "tool-compass",
        "its defaults (hybrid, exact names first), ten results whatever their confidence, chains and statistics off, "
        "the bundled model in the process: its own, nomic-embed-text, needs Ollama and has to be downloaded",
    ),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds of a system to get ready, for one answer, and for all queries of a size."""

    ready_s: float
    answer_s: float
    all_answers_s: float


# Recall is not timed: its limits only stop a system that hangs.
OF_RECALL = Limits(3600.0, 300.0, float("inf"))
OF_LATENCY = Limits(420.0, 60.0, 60.0)

T = TypeVar("T")


# A system in its process


class NoAnswerError(Exception):
    """A system did not answer in time, ended, or its output was invalid; it must not be asked again."""


@dataclass(slots=True)
class System:
    """A system under test: its process, the time of its limits, and what it has answered so far.

    `ready` and `answers` are as `peer_systems.answering` sends them; `failed` is the reason for missing ones.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready: Figures = field(default_factory=dict[str, Any])
    answers: list[Figures] = field(default_factory=list[Figures])
    failed: str = ""

    def start(self, within_s: float) -> None:
        """Wait until it is ready, or note that it is not."""
        try:
            self.ready = self._line(within_s)
            print(f"  {self.name} ready after {self.ready['ready_s']:.1f} s", flush=True)
        except NoAnswerError as error:
            self.failed = f"not ready: {error}"
            print(f"  {self.name} {self.failed}", flush=True)

    def ask(self, steps: Sequence[str], limits: Limits) -> list[ToolKey]:
        """Return the tools that it finds, best first; none if it has failed, or its time is up."""
        if self.failed or sum(answer["seconds"] for answer in self.answers) >= limits.all_answers_s:
            return []
        try:
            _pipe(self.process.stdin).write(json.dumps({"steps": list(steps), "k": K}).encode() + b"\n")
            self.answers.append(self._line(limits.answer_s))
        except (NoAnswerError, BrokenPipeError) as error:
            self.failed = str(error)
            return []
        return [(server, name) for server, name in self.answers[-1]["ranked"]]

    def _line(self, within_s: float) -> Figures:
        output = _pipe(self.process.stdout)
        if not select.select([output], [], [], within_s)[0]:
            raise NoAnswerError(f"no answer within {within_s:.0f} s")
        line = output.readline()
        if not line:
            raise NoAnswerError(self.log.read_text(errors="replace").strip().rpartition("\n")[2])
        answer: Figures = json.loads(line)
        return answer


@contextmanager
def running(candidate: Candidate, tools: Path, vectors: Path) -> Generator[System]:
    """Yield a process that reads these tools; it is ended at the end, however busy it is."""
    log = tools.with_name(f"{candidate.module}.log")
    module = f"benchmarks.peer_systems.{candidate.module}"
    started = [str(interpreter(candidate)), "-m", module, str(tools), str(vectors / f"{candidate.module}.npz")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            started, cwd=ROOT, env=environment, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            yield System(candidate.name, process, log)
            _pipe(process.stdin).close()  # it ends by itself when nothing more is asked
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        finally:
            process.kill()


def interpreter(candidate: Candidate) -> Path:
    """Return the Python of the candidate's environment, which is made where it is missing or its lock has changed."""
    if candidate.package is None:
        return Path(sys.executable)
    environment = PythonEnvironment(candidate.package, candidate.lock)
    if not environment.is_installed(ENVIRONMENTS):
        print(f"Making the environment of {candidate.name} {candidate.version} ...", flush=True)
        environment.install(ENVIRONMENTS)
    return environment.programs(ENVIRONMENTS) / "python"


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def write_tools(corpora: Iterable[Path], file: Path, size: int | None = None) -> int:
    """Write the tools of these corpora, `size` of them if it is given, and return their number.

    A corpus that is too small is repeated: the copies of a tool differ in nothing but the server that has them.
    """
    tools = [
        {
            "server": server.name,
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.as_object()["inputSchema"],
        }
        for server in read_servers(corpora)
        for tool in server.listing.tools
    ]
    repeated = ({**tool, "copy": copy} for copy in count() for tool in tools)
    lines = [json.dumps(tool) + "\n" for tool in islice(repeated, size or len(tools))]
    file.write_text("".join(lines), encoding="utf-8")
    return len(lines)


# Recall


def measure_recall(
    sets: Sequence[QuerySet], candidates: Sequence[Candidate], data: Path, vectors: Path
) -> list[Figures]:
    """Return what all systems find on these sets: scores by name, and the reasons of systems without one."""
    found: list[Figures] = []
    for _, together in groupby(sets, key=lambda query_set: query_set.corpora):
        own = list(together)
        with TemporaryDirectory(prefix="toolscale-peers-") as directory:
            file = Path(directory) / "tools.jsonl"
            tools = write_tools(own[0].corpus_files(data), file)
            rows: list[Figures] = [{"name": each.name, "tools": tools, "scores": {}, "failed": {}} for each in own]
            for candidate in candidates:
                with running(candidate, file, vectors) as system:
                    system.start(OF_RECALL.ready_s)
                    for query_set, row in zip(own, rows, strict=True):
                        _score(query_set, data, system, row)
        found += rows
    return found


def _score(query_set: QuerySet, data: Path, system: System, row: Figures) -> None:
    queries = read_queries(query_set.query_file(data))
    row["queries"] = len(queries)
    run = {query.id: system.ask(query.asked(in_steps=query_set.in_steps), OF_RECALL) for query in queries}
    if system.failed:
        row["failed"][system.name] = system.failed
        return
    row["scores"][system.name] = Evaluation(data).score(query_set.queries, run)
    print(f"  {query_set.name}, {system.name}: {row['scores'][system.name]}", flush=True)


# Latency


def measure_latency(
    corpus: Path, size: int, queries: Sequence[str], candidates: Sequence[Candidate], vectors: Path, limits: Limits
) -> list[Figures]:
    """Return how long each system takes for these queries among so many tools; each query is asked once."""
    with TemporaryDirectory(prefix="toolscale-peers-") as directory, ExitStack() as stack:
        file = Path(directory) / "tools.jsonl"
        write_tools([corpus], file, size)
        systems: list[System] = []
        for candidate in candidates:  # one after the other, so that none takes from another's time to build
            systems.append(stack.enter_context(running(candidate, file, vectors)))
            systems[-1].start(limits.ready_s)
        for turn, query in enumerate(queries):
            first = turn % len(systems)
            for system in (*systems[first:], *systems[:first]):
                system.ask([" ".join(query.split()[:MAX_WORDS])], limits)
        return list(map(_latency, systems))


def _latency(system: System) -> Figures:
    """Return the milliseconds of an answer, whole and without the query's embedding.

    `ready_s` is from the tools to the first answer, without the model's share.
    """
    if not system.answers:
        return {"system": system.name, "answers": 0, "failed": system.failed}
    whole = [1000 * answer["seconds"] for answer in system.answers]
    without_model = [1000 * (answer["seconds"] - answer["embed_s"]) for answer in system.answers]
    return {
        "system": system.name,
        "answers": len(whole),
        "ready_s": round(system.ready["ready_s"], 1),
        "memory_mib": round(system.ready["memory_mib"]),
        "p50": round(statistics.median(whole), 1),
        "p95": round(percentile(whole, 95), 1),
        "without_model_p50": round(statistics.median(without_model), 1),
        "without_model_p95": round(percentile(without_model, 95), 1),
        "failed": system.failed,
    }


# Results


def merged(before: Figures, candidates: Sequence[Candidate], recall: Figures, latency: Sequence[Figures]) -> Figures:
    """Return the kept results with what is new in place of the same part and size."""
    by_size = {part["tools"]: part for part in (*before.get("latency", ()), *latency)}
    return {
        "systems": [{"name": each.name, "version": each.version, "given": each.given} for each in candidates],
        "recall": recall or before.get("recall", {}),
        "latency": [by_size[size] for size in sorted(by_size)],
    }


def part_of(name: str, subject: str, measure: Callable[[], object]) -> Figures:
    """Return what `measure` returns as the field `name`, with when and where that was."""
    watches = Watches()
    found = watches.measure(subject, measure)
    return {**made(), "conditions": watches.conditions, name: found}


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    title, _, body = (__doc__ or "").partition("\n")
    yield f"# {title}"
    yield body.strip()
    yield "## What was compared"
    systems = [(system["name"], system["version"], system["given"]) for system in figures["systems"]]
    yield table(("system", "version", "was given"), systems)
    if figures["recall"]:
        sets = figures["recall"]["sets"]
        names = list(dict.fromkeys(name for row in sets for name in (*row["scores"], *row["failed"])))
        yield "## Recall at 5 / at 10, in percent, with 95 % intervals"
        yield f"Recall was {_when(figures['recall'])}"
        yield table(("set", "queries", "tools", *names), (_recall_row(row, names) for row in sets))
    if figures["latency"]:
        yield "## Time to answer, one caller at a time"
        yield "\n".join(f"- {part['tools']:,} tools: {_when(part)}" for part in figures["latency"])
        yield "The first answer counts from when the tools were read, without the time that the model takes for them."
        times = ("median ms", "95th percentile ms", "without the model, median ms", "95th percentile ms")
        columns = ("tools", "system", "answers", *times, "first answer after, s", "memory, MiB")
        rows = (_latency_row(part["tools"], row) for part in figures["latency"] for row in part["systems"])
        yield table(columns, rows)


def _recall_row(row: Figures, names: Sequence[str]) -> list[str]:
    best = max((score["recall_at_5"] for score in row["scores"].values()), default=0.0)
    cells = [row["name"], str(row["queries"]), f"{row['tools']:,}"]
    for name in names:
        score = row["scores"].get(name)
        shown = score_cell(score) if score else row["failed"].get(name, "")
        cells.append(f"**{shown}**" if score and score["recall_at_5"] == best else shown)
    return cells


def _latency_row(tools: int, row: Figures) -> list[str]:
    if not row["answers"]:
        return [f"{tools:,}", row["system"], row["failed"], *[""] * 6]
    times = [f"{row[key]:.1f}" for key in ("p50", "p95", "without_model_p50", "without_model_p95", "ready_s")]
    return [f"{tools:,}", row["system"], str(row["answers"]), *times, f"{row['memory_mib']:,}"]


def _when(part: Figures) -> str:
    busy = max(condition["others_percent"] for condition in part["conditions"])
    where = f"on {part['machine']['processor']}, {part['machine']['cores']} cores"
    return f"made on {part['made_at']}, {where}; other programs took up to {busy:.0f} % of the machine."


def main() -> None:
    """Measure the parts, and keep the others as they are."""
    parser = command("peers", __doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure these; the other part stays")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="tools for latency; other sizes stay")
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    parser.add_argument("--vectors", type=Path, help="directory to keep vectors of tools in")
    arguments = parser.parse_args()
    if not arguments.render:
        with TemporaryDirectory(prefix="toolscale-peers-") as nowhere:
            _measure(arguments, arguments.vectors or Path(nowhere))
    report("peers", arguments.output, render)


def _measure(arguments: argparse.Namespace, vectors: Path) -> None:
    sets = [query_set for query_set in SETS if not arguments.quick or query_set.name == QUICK]
    candidates = CANDIDATES[:1] if arguments.quick else CANDIDATES
    timed = sets[0] if arguments.quick else QuerySet("agents", "livemcp_agent", ("haystack",))
    recall, latency, data = Figures(), list[Figures](), arguments.data
    if "recall" in arguments.only:
        recall = part_of("sets", "recall", partial(measure_recall, sets, candidates, data, vectors))
    for size in arguments.sizes if "latency" in arguments.only else ():
        texts = [query.text for query in read_queries(timed.query_file(data))[:QUERIES]]
        (corpus,) = timed.corpus_files(data)
        measured = partial(measure_latency, corpus, size, texts, candidates, vectors, OF_LATENCY)
        latency.append({"tools": size, **part_of("systems", f"latency at {size} tools", measured)})
    keep("peers", arguments.output, merged(kept("peers", arguments.output), candidates, recall, latency))


if __name__ == "__main__":
    main()
