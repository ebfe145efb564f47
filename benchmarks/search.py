"""Search in large catalogues.

**Question.** How long does a search take in a catalogue of 10,000 and 100,000 tools, and each of its parts?
On a Qdrant server also of a million, with the server's processor time, memory and graphs.
[Decisions](../../docs/decisions.md#the-embedded-index) gives the reasons for exact search on Qdrant Edge.

**Repeat.** `make bench BENCH=search` takes five to ten minutes on two cores, half of them to embed 20,000 tools.
`--sizes 10000 100000 1000000` measures other sizes; with `QDRANT_URL` a server takes about two minutes for 100,000.

**Method.** Real tools are written as reconciliations of their servers would, with the bundled model's vectors.
Beyond the size of the corpus they repeat under other servers with other names.
Servers are divided into a hundred groups, and a filter admits one group; another filter admits the servers of the
corpus, as a search among replicas does.
Four policies deny tools; the time has the sum of what is left, which is kept until a server changes.
Queries are those of other corpora, cut to 15 words, one after the other, twice; their vectors are remembered.

**Caveats.**

- A search in a repeated corpus finds each tool several times, all equally near.
- A search among replicas has a filter of one server of each set, and also reads the names of equal tools.
- Sizes are measured once, each in a process of its own. The Qdrant server is among the other programs.
- Where the processor time was not measured, revisions counted from 1, so the ledger compared all records each second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil

from benchmarks.catalogue import PreparedServer, fill_corpus, prepare
from benchmarks.compositions import index_settings
from benchmarks.corpora import read_queries, read_servers
from benchmarks.harness import (
    DATA,
    MIB,
    Figures,
    Watches,
    command,
    disk_mib,
    head,
    in_fresh_process,
    kept_name,
    percentiles,
    read_json,
    run_benchmark,
    server_cpu_s,
    server_process,
    table,
    wait_until_indexed,
)
from query.caller import ANYONE
from query.catalogue import Catalogue
from query.find import find_tool
from query.policy import Policy
from query.records import Ledger
from query.search.ranking import DEPTH, rank
from query.search.request import FindRequest
from shared.catalog import Scope
from shared.index import open_engine
from shared.index.points import NamedVector, PointCollection
from shared.index.tools import NAME_VECTOR, TERMS_VECTOR, TEXT_VECTOR, ToolIndex, scope_filter
from shared.index.versions import IndexStore, IndexVersion, tools_spec
from shared.text.embedding import Embedder, FastEmbedder, query_vectors
from tests.support.qdrant_server import qdrant_url

QUERY_SETS = ("livemcp_agent", "toolsieve")
WORDS = 15  # a longer query would be searched by its clauses as well
LIMIT = 8

PARTS = {
    "vectors of names": "name_list",
    "vectors of texts": "text_list",
    "terms": "terms_list",
    "all three in one round trip": "lists",
    "ranking": "ranking",
    "reading eight tools": "tools",
}
SEARCHES = {
    "**search, without the query's embedding**": "search",
    "the same, within one of a hundred groups": "filtered",
    "the same, within the servers of the corpus": "originals",
    "the same, all denied but one server": "one server",
    "the same, all denied but half of the servers": "half the servers",
    "the same, all denied but tools whose names begin with `get`, `list` or `search`": "some names",
    "the same, tools with `delete` in their names denied": "no deletion",
}
POLICIES = {
    "one server": ({"servers": ("{server}",), "action": "allow"}, {"action": "deny"}),
    "half the servers": ({"servers": ("*[02468]-*",), "action": "allow"}, {"action": "deny"}),
    "some names": ({"tools": ("get*", "list*", "search*"), "action": "allow"}, {"action": "deny"}),
    "no deletion": ({"tools": ("*delete*",), "action": "deny"},),
}
"""The rules of a policy file; `{server}` is a server of the corpus."""

Q = TypeVar("Q")


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a run, in tools; each query is asked in several `rounds`."""

    name: str
    sizes: tuple[int, ...]
    queries: int
    rounds: int
    groups: int = 100


FULL = Plan("full", sizes=(10_000, 100_000), queries=250, rounds=2)
QUICK = Plan("quick", sizes=(200,), queries=3, rounds=1, groups=4)


def measure(plan: Plan, data: Path, watches: Watches) -> Figures:
    """Return the latencies and costs at each size."""
    prepared = prepare(read_servers([data / "corpora" / "haystack.jsonl"]), max(plan.sizes), FastEmbedder())
    queries = (query for name in QUERY_SETS for query in read_queries(data / "queries" / f"{name}.jsonl"))
    texts = [" ".join(query.text.split()[:WORDS]) for query in queries][: plan.queries]

    def at_size(tools: int) -> Figures:
        return in_fresh_process(_at_size, plan, tools, prepared, texts)

    sizes = [watches.measure(f"{tools:,} tools", partial(at_size, tools)) for tools in plan.sizes]
    url = qdrant_url()
    return {
        "plan": asdict(plan),
        "server": read_json(url)["version"] if url else "",
        "corpus_tools": sum(len(server.listing.tools) for server, _ in prepared),
        "queries": len(texts),
        "sizes": sizes,
    }


def _at_size(
    directory: Path, plan: Plan, tools: int, servers: Sequence[PreparedServer], texts: Sequence[str]
) -> Figures:
    return measure_size(directory, plan, tools, servers, texts, FastEmbedder())


def measure_size(
    directory: Path,
    plan: Plan,
    tools: int,
    servers: Sequence[PreparedServer],
    texts: Sequence[str],
    embedder: Embedder,
) -> Figures:
    """Return the costs of an index of so many tools, and the latencies of its searches.

    `indexed_s` is the time from the last write until a Qdrant server has built its graphs, and `server_cpu_s` its
    processor time for the writes and the graphs; both are 0 on Edge.
    """
    url = qdrant_url()
    with _opened(directory, embedder) as (index, _):
        started, before_s = time.perf_counter(), server_cpu_s()
        filled = fill_corpus(index, servers, tools, plan.groups)
        filled_s = time.perf_counter() - started
        wait_until_indexed()
        indexed_s = time.perf_counter() - started - filled_s
        cpu_s = server_cpu_s() - before_s
    corpus = Scope(servers=frozenset(f"{server.server_id}-0" for server, _ in servers[:filled]))
    started = time.perf_counter()
    with _opened(directory, embedder) as (index, collection):
        opened_s = time.perf_counter() - started
        parts = _parts(index, collection, embedder, plan, texts, corpus)
    process, stored = psutil.Process(), directory
    if url:
        process = server_process(url)
        stored = Path(process.cwd()) / process.environ().get("QDRANT__STORAGE__STORAGE_PATH", "storage")
    return {
        "tools": tools,
        "servers": filled,
        "filled_s": round(filled_s, 1),
        "indexed_s": round(indexed_s, 1) if url else 0.0,
        "server_cpu_s": round(cpu_s, 1),
        "opened_s": round(opened_s, 2),
        "disk_mib": disk_mib(stored.rglob("*")),
        "resident_mib": round(process.memory_info().rss / MIB, 1),
        "parts": parts,
    }


@contextmanager
def _opened(directory: Path, embedder: Embedder) -> Generator[tuple[ToolIndex, PointCollection]]:
    engine, version = open_engine(index_settings(directory)), IndexVersion(embedder.model, embedder.dimension)
    with closing(IndexStore(engine)) as store:
        store.ensure_active_version(version)
        yield store.index(version), engine.collection(tools_spec(version))


def _parts(
    index: ToolIndex,
    collection: PointCollection,
    embedder: Embedder,
    plan: Plan,
    texts: Sequence[str],
    corpus: Scope,
) -> Figures:
    """Return the durations of each part of a search, one caller at a time.

    `lists` is all three lists in one round trip; `search` is all parts within `find_tool`.
    """
    vectors = [query_vectors(text, embedder) for text in texts]
    everything = scope_filter(Scope())

    def one_list(name: str) -> Figures:
        values = (each.terms if name == TERMS_VECTOR else each.dense for each in vectors)
        questions = [NamedVector(name, value) for value in values if value is not None]
        return _timed(lambda question: collection.query([question], everything, DEPTH), questions, plan.rounds)

    candidates = [index.search([query], Scope(), DEPTH)[0] for query in vectors]
    chosen = [list(rank(candidate))[:LIMIT] for candidate in candidates]
    catalogue = Catalogue(index, embedder, Ledger(index), index_is_embedded=not qdrant_url())

    def searched(scopes: Sequence[Scope]) -> Figures:
        """Return the durations, and the mean processor time of a call: of this process, and of the Qdrant server."""
        process_s, server_s = time.process_time(), server_cpu_s()
        asked = [each for _ in range(plan.rounds) for each in zip(texts, scopes, strict=True)]
        timings = [find_tool(FindRequest(tool_description=text), scope, catalogue)[1] for text, scope in asked]
        samples = [each.search_ms + each.sum_ms for each in timings]
        process_s, server_s = time.process_time() - process_s, server_cpu_s() - server_s
        means = {"cpu_ms": process_s, "server_cpu_ms": server_s}
        rounded = {name: round(spent_s * 1e3 / len(samples), 2) for name, spent_s in means.items()}
        return {**percentiles(samples, 50, 95, 99), **rounded}

    find_tool(FindRequest(tool_description=texts[0]), Scope(), catalogue)  # the ledger reads every record once
    return {
        "name_list": one_list(NAME_VECTOR),
        "text_list": one_list(TEXT_VECTOR),
        "terms_list": one_list(TERMS_VECTOR),
        "lists": _timed(lambda query: index.search([query], Scope(), DEPTH), vectors, plan.rounds),
        "ranking": _timed(rank, candidates, plan.rounds),
        "tools": _timed(index.get, chosen, plan.rounds),
        "search": searched([Scope()] * len(texts)),
        "filtered": searched(
            [Scope(groups=frozenset({f"group-{number % plan.groups}"})) for number in range(len(texts))]
        ),
        "originals": searched([corpus] * len(texts)),
        **{name: searched([_under(rules, catalogue, corpus)] * len(texts)) for name, rules in POLICIES.items()},
    }


def _under(rules: Sequence[Mapping[str, Any]], catalogue: Catalogue, corpus: Scope) -> Scope:
    """Return the scope of any caller under these rules."""
    server = min(corpus.servers or ("",))
    written = [
        {**rule, "servers": tuple(name.format(server=server) for name in rule["servers"])}
        if "servers" in rule
        else rule
        for rule in rules
    ]
    policy = Policy.model_validate({"rules": written})
    return replace(catalogue, read_policy=lambda: policy).scope(ANYONE)


def _timed(ask: Callable[[Q], object], questions: Sequence[Q], rounds: int) -> Figures:
    samples: list[float] = []
    for question in list(questions) * rounds:
        started = time.perf_counter()
        ask(question)
        samples.append((time.perf_counter() - started) * 1e3)
    return percentiles(samples, 50, 95)


def render(figures: Figures) -> Iterator[str]:
    """Yield the report."""
    sizes, server = figures["sizes"], figures["server"]
    # a run of an earlier version has fewer
    searches = {label: part for label, part in SEARCHES.items() if all(part in size["parts"] for size in sizes)}
    headings = ("", *(f"{size['tools']:,} tools" for size in sizes))
    yield from head(__doc__, figures)
    yield (
        f"{f'On a server of Qdrant {server}' if server else 'In one process, on Qdrant Edge'}; "
        f"{figures['corpus_tools']:,} real tools, {figures['queries']} queries."
    )
    yield "## Where the time goes"
    yield "Milliseconds, p50 / p95; of searches p50 / p95 / p99."
    rows = [
        (label, *(_joined(size["parts"][part], "p50", "p95", "p99") for size in sizes))
        for label, part in (PARTS | searches).items()
    ]
    yield table(headings, rows)
    yield f"Processor time of a search, in ms{': the caller / the Qdrant server' if server else ''}."
    times = ("cpu_ms", "server_cpu_ms") if server else ("cpu_ms",)
    rows = [(label, *(_joined(size["parts"][part], *times) for size in sizes)) for label, part in searches.items()]
    yield table(headings, rows)
    yield "## Disk, memory and opening"
    yield f"Seconds, and MiB of {'the Qdrant server' if server else 'this process'} after the searches."
    of_server = {"the last graphs": "indexed_s", "processor time for both": "server_cpu_s"} if server else {}
    always = {"opening": "opened_s", "disk": "disk_mib", "memory": "resident_mib"}
    columns = {"filling": "filled_s", **of_server, **always}
    rows = [(f"{size['tools']:,}", *(f"{size[name]:,.4g}" for name in columns.values())) for size in sizes]
    yield table(("tools", *columns), rows)


def _joined(found: Figures, *names: str) -> str:
    values = (found[name] for name in names if name in found)
    return " / ".join("not measured" if value is None else f"{value:.2f}" for value in values)


def main() -> None:
    """Run the benchmark, or only render what is kept."""
    parser = command("search", __doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora and queries")
    parser.add_argument("--sizes", type=int, nargs="+", default=FULL.sizes, help="numbers of tools")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else replace(FULL, sizes=tuple(arguments.sizes))
    run_benchmark(kept_name("search"), arguments, partial(measure, plan, arguments.data), render)


if __name__ == "__main__":
    main()
