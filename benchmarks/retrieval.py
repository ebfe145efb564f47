"""Retrieval: does `find_tool` find the right tools, and does it say so where none fits?

Real tools are ingested by the write path, with the bundled model and Qdrant Edge; an MCP client sends real queries.
The rivals rank the candidates of the same index. The script published with the data computes the scores.

- Recall is over capabilities: a task that needs three tools and gets two has two thirds.
- An answer that says that nothing fits counts as having found nothing, for Toolscale alone: its rivals always answer.
- The sets annotated by people are small: with 95 queries an interval is about 14 points wide.
- The weights of the fusion were chosen on these sets; 0.05 more or less moves single sets by up to two points.
- mcp-optimizer (StacklokLabs) was rebuilt from its source by those who gathered the sets, and returns at most eight
  tools.

`--corpus FILE... --queries FILE --out RUN.jsonl` writes the run of any files of that format, for a script to score.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio

from benchmarks.corpora import (
    Query,
    System,
    ToolKey,
    answering,
    ask,
    ingested,
    read_queries,
    read_servers,
    write_run,
)
from benchmarks.harness import DATA, RESULTS, ROOT, Figures, Watches, command, filled, head, run_benchmark, table
from query.find import MATCH_CANDIDATES
from query.search.ranking import DEPTH, NO_MATCH_THRESHOLD, fit, round_robin, similarity
from query.search.search import embed_steps, hits, merged, search
from shared.catalog import Candidates, Scope
from shared.text.embedding import query_vectors

K = 10
# What an answer has at most, unless its caller asks for more.
USUAL_LIMIT = 8
QUICK = "mcpproxy_golden"
# What is rendered from the kept results besides the report.
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "retrieval.md")
# The retriever rebuilt from its source by the authors of the sets.
PEER = "mcp-optimizer (StacklokLabs)"

# Cormack, Clarke and Büttcher, "Reciprocal Rank Fusion Outperforms Condorcet", SIGIR 2009; k as there.
RRF_K = 60

THRESHOLDS = (0.15, 0.2, 0.22, 0.24, NO_MATCH_THRESHOLD, 0.27, 0.28, 0.29, 0.3, 0.308, 0.31, 0.32, 0.33, 0.35)
FIRST = 5
# Each query is searched at least three times; the first queries of a set suffice.
MAX_QUERIES, MAX_QUERIES_ELSEWHERE = 300, 100
# A larger corpus has tools for nearly everything.
MAX_TOOLS_ELSEWHERE = 1_000
# Words of names that say nothing of what a server is for.
COMMON = frozenset({"api", "data", "mcp", "search", "server", "the", "tools", "web"})

Score = Figures
"""In percent: recall as `recall_at_5` and `recall_at_10`, with 95 % intervals as `interval_at_5` and so on, and the
share of queries with a right tool first, or among the first three, as `hit_at_1` and `hit_at_3`."""

Rank = Callable[[Candidates], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class QuerySet:
    """A set: its file of queries, its corpora, and what PEER reached at 5 and at 10, where that was measured."""

    name: str
    queries: str
    corpora: tuple[str, ...]
    peer: tuple[float, float] | None = None
    in_steps: bool = False

    def corpus_files(self, data: Path) -> list[Path]:
        """Return the files of its corpora."""
        return [data / "corpora" / f"{name}.jsonl" for name in self.corpora]

    def query_file(self, data: Path) -> Path:
        """Return the file of its queries."""
        return data / "queries" / f"{self.queries}.jsonl"


LIVE, FOREIGN = ("livemcp",), ("livemcp", "haystack")
SETS = (
    QuerySet("livemcp_tasks", "livemcp_tasks", LIVE, (37.3, 39.6)),
    QuerySet("livemcp_tasks, in steps", "livemcp_tasks", LIVE, in_steps=True),
    QuerySet("livemcp_agent", "livemcp_agent", LIVE, (84.2, 87.8)),
    QuerySet("toolsieve", "toolsieve", ("toolsieve181",), (88.7, 89.9)),
    QuerySet("mcpproxy_golden", "mcpproxy_golden", ("mcpproxy45",), (95.7, 95.7)),
    QuerySet("mcpbench_single", "mcpbench_single", ("mcpbench",), (52.9, 53.1)),
    QuerySet("mcpzero_task_dev", "mcpzero_task_dev", ("mcpzero",), (89.1, 90.8)),
    QuerySet("mcpzero_agent_dev", "mcpzero_agent_dev", ("mcpzero",)),
    QuerySet("livemcp_tasks among foreign tools", "livemcp_tasks", FOREIGN),
    QuerySet("livemcp_tasks among foreign tools, in steps", "livemcp_tasks", FOREIGN, in_steps=True),
    QuerySet("livemcp_agent among foreign tools", "livemcp_agent", FOREIGN),
)


def measure(sets: Sequence[QuerySet], data: Path, watches: Watches) -> Figures:
    """Return the recall of each set, and what each threshold of `no_match` does."""
    judged_sets = [query_set for query_set in sets if len(query_set.corpora) == 1 and not query_set.in_steps]
    found: list[Figures] = []
    judged: dict[str, list[Judged]] = {}
    elsewhere: dict[str, list[float]] = defaultdict(list)
    evaluation = Evaluation(data)

    def measure_corpus(own: Sequence[QuerySet]) -> None:
        servers = read_servers(own[0].corpus_files(data))
        tools = sum(len(server.listing.tools) for server in servers)
        with ingested(servers) as system:
            for query_set in judged_sets:
                queries = read_queries(query_set.query_file(data))
                if query_set in own:
                    judged[query_set.name] = [judge(system, query) for query in queries[:MAX_QUERIES]]
                elif tools <= MAX_TOOLS_ELSEWHERE:
                    elsewhere[query_set.name] += judge_elsewhere(system, queries)
            for query_set in own:
                found.append(_recall(query_set, system, tools, evaluation, data))
                print(f"  {query_set.name}: {found[-1]['toolscale']}", flush=True)

    for corpora, own in groupby(sets, key=lambda query_set: query_set.corpora):
        watches.measure(" + ".join(corpora), partial(measure_corpus, list(own)))
    return {"sets": found, "no_match": mean_curve([(queries, elsewhere[name]) for name, queries in judged.items()])}


def _recall(query_set: QuerySet, system: System, tools: int, evaluation: Evaluation, data: Path) -> Figures:
    queries, in_steps = read_queries(query_set.query_file(data)), query_set.in_steps
    run = anyio.run(partial(ask, system, queries, K, in_steps=in_steps))
    rivals = {
        name: {query.id: ask_rival(system, query.asked(in_steps=in_steps), rank) for query in queries}
        for name, rank in RIVALS.items()
    }
    return {
        "name": query_set.name,
        "queries": len(queries),
        "tools": tools,
        "toolscale": evaluation.score(query_set.queries, run),
        "rivals": {name: evaluation.score(query_set.queries, own) for name, own in rivals.items()},
        "answers": None if in_steps else anyio.run(_answers, query_set, system, queries, evaluation),
    }


async def _answers(query_set: QuerySet, system: System, queries: Sequence[Query], evaluation: Evaluation) -> Figures:
    """Return the means of the first answers of a usual length, and of them with the rest of the next page."""
    first: dict[str, list[ToolKey]] = {}
    whole: dict[str, list[ToolKey]] = {}
    tokens, all_tokens = 0, 0
    async with answering(system) as answer:
        for query in queries:
            page = await answer(query.text, USUAL_LIMIT)
            first[query.id], tokens, all_tokens = page.tools, tokens + page.tokens, all_tokens + page.tokens
            whole[query.id], rest = page.tools, USUAL_LIMIT - len(page.tools)
            if rest and page.cursor:
                further = await answer(query.text, rest, page.cursor)
                whole[query.id], all_tokens = [*page.tools, *further.tools], all_tokens + further.tokens

    def recall(run: Mapping[str, Sequence[ToolKey]]) -> float:
        return _percent(evaluation.recalls(query_set.queries, run, USUAL_LIMIT))

    return {
        "recall": recall(first),
        "recall_with_rest": recall(whole),
        "tools": round(statistics.fmean(map(len, first.values())), 1),
        "tools_with_rest": round(statistics.fmean(map(len, whole.values())), 1),
        "tokens": round(tokens / len(queries)),
        "tokens_with_rest": round(all_tokens / len(queries)),
    }


class Evaluation:
    """The evaluation script of a data directory, which is not part of this project."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._script = _load(data / "evaluate.py")

    def score(self, queries: str, run: Mapping[str, Sequence[ToolKey]]) -> Score:
        """Return the means over the queries of a set and their 95 % intervals, in percent."""
        mean: dict[str, Any] = self._script.score(self._asked(queries), dict(run), ci=True)[0]
        recalls = {f"recall_at_{cut}": _percent([mean[f"recall@{cut}"]]) for cut in (5, K)}
        bounds = {f"interval_at_{cut}": [_percent([bound]) for bound in mean["ci"][f"recall@{cut}"]] for cut in (5, K)}
        hits = {f"hit_at_{cut}": _percent([mean[f"hit@{cut}"]]) for cut in (1, 3)}
        return {**recalls, **bounds, **hits}

    def recalls(self, queries: str, run: Mapping[str, Sequence[ToolKey]], cut: int) -> list[float]:
        """Return the recall at this cut-off of each query that the run has."""
        asked = (query for query in self._asked(queries) if query["id"] in run)
        return [self._script.score_query(query, run[query["id"]])[f"recall@{cut}"] for query in asked]

    def _asked(self, queries: str) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = self._script.load_jsonl(self._data / "queries" / f"{queries}.jsonl")
        return asked


def _load(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("retrieval_evaluate", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The rivals


def bm25(candidates: Candidates) -> Mapping[str, float]:
    """Score by BM25 only."""
    return candidates.terms


def dense(candidates: Candidates) -> Mapping[str, float]:
    """Score by the dense vectors only."""
    points = list(candidates.points)
    return dict(zip(points, similarity(candidates, points).tolist(), strict=True)) if candidates.name else {}


def rrf(candidates: Candidates) -> Mapping[str, float]:
    """Score by reciprocal rank fusion of the two."""
    scores: defaultdict[str, float] = defaultdict(float)
    for scored in (dense(candidates), bm25(candidates)):
        for rank, point in enumerate(_ranked(scored)[:DEPTH], start=1):
            scores[point] += 1 / (RRF_K + rank)
    return scores


RIVALS: dict[str, Rank] = {"BM25 only": bm25, "dense only": dense, "RRF, k = 60": rrf}


def ask_rival(system: System, steps: Sequence[str], rank: Rank) -> list[ToolKey]:
    """Return what a rival finds, steps merged in turns as the product does."""
    found = system.index.search([query_vectors(step, system.embedder) for step in steps], Scope(), DEPTH)
    chosen = round_robin([_ranked(rank(candidates)) for candidates in found], K)
    tools = system.index.get(chosen)
    return [system.key(tools[point].server_id, tools[point].definition.name) for point in chosen]


def _ranked(scores: Mapping[str, float]) -> list[str]:
    return sorted(scores, key=lambda point: (-scores[point], point))


# Knowing that nothing fits


@dataclass(frozen=True, slots=True)
class Judged:
    """A query: how well its best tool fits with all tools, without the relevant ones, and without their servers.

    `found` is the share of relevant tools among the first five with all tools.
    """

    with_all: float
    without_tools: float
    without_servers: float
    found: float


def judge(system: System, query: Query) -> Judged:
    """Return how well the best tool fits a query, with its relevant tools in the index and without."""
    relevant = set(system.qualified(query.relevant))
    servers = frozenset(system.names) - {system.ids[server] for server, _ in query.relevant if server in system.ids}
    with_all, found = _best_fit(system, query, Scope())
    return Judged(
        with_all=with_all,
        without_tools=_best_fit(system, query, Scope(exclude=frozenset(relevant)))[0],
        without_servers=_best_fit(system, query, Scope(servers=servers))[0],
        found=len(relevant.intersection(found)) / len(relevant) if relevant else 0.0,
    )


def judge_elsewhere(system: System, queries: Sequence[Query]) -> list[float]:
    """Return how well the best tool fits queries of another set, none of whose servers has a similar name here."""
    here = _words(system.ids)
    strangers = [query for query in queries if not here & _words(server for server, _ in query.relevant)]
    return [_best_fit(system, query, Scope())[0] for query in strangers[:MAX_QUERIES_ELSEWHERE]]


def mean_curve(sets: Sequence[tuple[Sequence[Judged], Sequence[float]]]) -> list[Figures]:
    """Return what each threshold does in percent: means over the sets, so that a large one counts no more."""
    return [
        {
            "threshold": threshold,
            "elsewhere": _mean(_percent(best < threshold for best in elsewhere) for _, elsewhere in sets),
            "servers_removed": _mean(_percent(each.without_servers < threshold for each in own) for own, _ in sets),
            "tools_removed": _mean(_percent(each.without_tools < threshold for each in own) for own, _ in sets),
            "lost_recall": _mean(_percent(each.found * (each.with_all < threshold) for each in own) for own, _ in sets),
        }
        for threshold in THRESHOLDS
    ]


def _best_fit(system: System, query: Query, scope: Scope) -> tuple[float, list[str]]:
    """Return how well the best tool fits, judged as `find_tool` does, and the names of the first five."""
    (step,) = embed_steps([query.text], system.embedder)
    (found,) = results = search([step], scope, system.index)
    tools = [hit.tool for hit in hits(merged(results)[:MATCH_CANDIDATES], results, system.index)]
    names = [tool.qualified_name for tool in tools[:FIRST]]
    return fit(found, tools, system.embedder) if tools else -math.inf, names


def _words(names: Iterable[str]) -> set[str]:
    return {word for name in names for word in re.findall(r"[a-z]{3,}", name.lower())} - COMMON


def _percent(shares: Iterable[float]) -> float:
    """Return the mean in percent; 0 of nothing."""
    counted = list(shares)
    return round(100 * statistics.fmean(counted), 1) if counted else 0.0


def _mean(percents: Iterable[float]) -> float:
    return round(statistics.fmean(percents), 1)


# The reports


def render(figures: Figures) -> Iterator[str]:
    """Yield the blocks of the report."""
    sets, rivals = figures["sets"], list(figures["sets"][0]["rivals"])
    yield from head(__doc__, figures)
    yield "## Recall at 5 / at 10, in percent, with 95 % intervals"
    columns = ("set", "queries", "tools", "Toolscale, over MCP", *rivals, PEER)
    yield table(columns, map(_recall_row, sets))
    yield "## A right tool first / among the first three, in percent of the queries"
    yield table(("set", "queries", "tools", "Toolscale, over MCP", *rivals), map(_first_row, sets))
    yield "## Where answers end"
    yield (
        f"Answers of at most {USUAL_LIMIT} tools, as an agent gets them, and together with the rest of the next page.\n"
        "Tokens are those of the tools' definitions."
    )
    columns = ("set", f"recall at {USUAL_LIMIT}, %", "with the rest", "tools", "with the rest", "tokens", "fewer, %")
    yield table(columns, [_answers_row(found) for found in sets if found["answers"]])
    yield "## Knowing that nothing fits"
    yield (
        "How often `no_match` is returned, in percent, means over the sets: to queries asked in another set's corpus,\n"
        "whose servers have nothing to do with them; with the servers they need taken out of the index; and with the\n"
        "tools they need taken out. The last column is its cost in recall at 5 where the tools are there."
    )
    yield table(
        ("threshold", "asked elsewhere", "servers out", "tools out", "recall lost"),
        [[f"{point['threshold']:g}", *list(point.values())[1:]] for point in figures["no_match"]],
    )


def _recall_row(found: Figures) -> list[str]:
    peer = _published(found["name"])
    rivals = (score_cell(score) for score in found["rivals"].values())
    own = f"**{score_cell(found['toolscale'])}**"
    return [*_size_cells(found), own, *rivals, f"{peer[0]} / {peer[1]}" if peer else ""]


def _first_row(found: Figures) -> list[str]:
    own, *rivals = (
        f"{score['hit_at_1']:.1f} / {score['hit_at_3']:.1f}"
        for score in (found["toolscale"], *found["rivals"].values())
    )
    return [*_size_cells(found), f"**{own}**", *rivals]


def _answers_row(found: Figures) -> list[str]:
    answers = found["answers"]
    names = ("recall", "recall_with_rest", "tools", "tools_with_rest", "tokens")
    fewer = 100 * (1 - answers["tokens"] / answers["tokens_with_rest"]) if answers["tokens_with_rest"] else 0
    return [found["name"], *(f"{answers[name]:,}" for name in names), f"{fewer:.0f}"]


def score_cell(score: Score) -> str:
    """Return recall at 5 and at 10 with their intervals."""
    (low, high), (low_10, high_10) = score["interval_at_5"], score["interval_at_10"]
    at_5, at_10 = f"{score['recall_at_5']:.1f}", f"{score['recall_at_10']:.1f}"
    return f"{at_5} ({low:.0f} to {high:.0f}) / {at_10} ({low_10:.0f} to {high_10:.0f})"


def document_table(figures: Figures, name: str) -> str:
    """Return recall at 5 as documents show it: `recall` has all sets, `recall of A; B` the sets A and B.

    Raises:
        KeyError: a set is unknown.
    """
    by_name = {found["name"]: found for found in figures["sets"]}
    names = name.partition(" of ")[2]
    sets = [by_name[each] for each in names.split("; ")] if names else figures["sets"]
    columns = ("recall at 5, %", "queries", "tools", "Toolscale", "its first is right, %", *sets[0]["rivals"], PEER)
    return table(columns, map(_document_row, sets))


def _document_row(found: Figures) -> list[str]:
    low, high = found["toolscale"]["interval_at_5"]
    own = f"**{found['toolscale']['recall_at_5']:.1f}** ({low:.0f} to {high:.0f})"
    rivals = (f"{score['recall_at_5']:.1f}" for score in found["rivals"].values())
    peer = _published(found["name"])
    first = f"{found['toolscale']['hit_at_1']:.1f}"
    return [*_size_cells(found), own, first, *rivals, f"{peer[0]:g}" if peer else ""]


def _size_cells(found: Figures) -> list[str]:
    return [found["name"], str(found["queries"]), f"{found['tools']:,}"]


def _published(name: str) -> tuple[float, float] | None:
    return next(query_set.peer for query_set in SETS if query_set.name == name)


def main() -> None:
    """Measure all sets, or write the run of one."""
    arguments = _arguments()
    if arguments.queries:
        queries = read_queries(arguments.queries)
        with ingested(read_servers(arguments.corpus)) as system:
            run = anyio.run(partial(ask, system, queries, arguments.k, in_steps=arguments.subqueries))
        write_run(arguments.out, run)
        print(f"Wrote {arguments.out}: {len(run)} queries, {sum(not tools for tools in run.values())} without a match")
        return
    sets = [query_set for query_set in SETS if not arguments.quick or query_set.name == QUICK]
    figures = run_benchmark("retrieval", arguments, partial(measure, sets, arguments.data), render)
    for file in DOCUMENTS if arguments.output == RESULTS else ():
        text = filled(file.read_text(encoding="utf-8"), partial(document_table, figures))
        file.write_text(text, encoding="utf-8")
        print(f"Wrote {file}")


def _arguments() -> argparse.Namespace:
    parser = command("retrieval", __doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of corpora, queries and evaluate.py")
    one = parser.add_argument_group("one set")
    one.add_argument("--corpus", type=Path, nargs="+", action="extend", help="files of tools; several are one corpus")
    one.add_argument("--queries", type=Path, help="file of queries")
    one.add_argument("--out", type=Path, help="file of the run")
    one.add_argument("--subqueries", action="store_true", help="ask the steps of queries that carry them, in one call")
    one.add_argument("--k", type=int, default=K, help="tools to return, at most 50")
    arguments = parser.parse_args()
    if bool(arguments.queries) != bool(arguments.corpus and arguments.out):
        parser.error("--corpus, --queries and --out belong together")
    return arguments


if __name__ == "__main__":
    main()
