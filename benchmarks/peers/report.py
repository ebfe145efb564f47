"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.peers.results import Latency, LatencyPart, Part, RecallPart, Results, SetRecall
from benchmarks.retrieval.results import Score

CAVEATS = (
    "This is a comparison by the makers of one of the compared. The first table says what each system was given; the "
    "modules of `benchmarks/peers` give it.",
    "All that take a model have the same one, which is bundled with Toolscale and trained for it. It reads 64 tokens "
    "of a tool and 512 of a query. toolsieve and tool-compass were made for larger ones, which have to be downloaded, "
    "and may find more with those.",
    "The weights of Toolscale's fusion were chosen on these sets, the peers' were not; the set *toolsieve* was made by "
    "the authors of toolsieve.",
    "Systems that take one text at a time were asked the steps of a task one by one, and the answers merged in turns.",
    "Toolscale alone may say that nothing fits, which counts as having found nothing.",
    "An answer is timed at the system's own MCP tool, called in memory by a client in the same process, without a "
    "transport. FastMCP answers with ten definitions, Toolscale with those or with lines within its token budget and "
    "with what that saved, toolsieve with one definition and lines, tool-compass with lines.",
    "The tools were put in without servers to list them. Toolscale's are then on disk, with their tokens counted; "
    "tool-compass keeps an index in a file, the others keep everything in memory.",
)

LATENCY_COLUMNS = (
    "tools",
    "system",
    "answers",
    "median ms",
    "95th percentile ms",
    "without the model, median ms",
    "95th percentile ms",
    "first answer after, s",
    "memory, MiB",
)


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = [_head(), _systems(results)]
    if results.recall:
        sections.append(_recall(results.recall))
    if results.latency:
        sections.append(_latency(results.latency))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head() -> Iterator[str]:
    yield "# Beside its peers"
    yield ""
    yield "Rendered from `peers.json`, which `make bench-peers` writes; what is measured and why: docs/retrieval.md."
    yield ""
    yield "## Keep in mind"
    yield ""
    yield from (f"- {caveat}" for caveat in CAVEATS)


def _systems(results: Results) -> Iterator[str]:
    yield "## What was compared"
    yield ""
    yield "| system | version | was given |"
    yield "|---|---|---|"
    for system in results.systems:
        yield f"| {system.name} | {system.version} | {system.given} |"


def _recall(part: RecallPart) -> Iterator[str]:
    names = list(dict.fromkeys(name for recall in part.sets for name in (*recall.scores, *recall.failed)))
    yield "## Recall at 5 / at 10, in percent, with 95 % intervals"
    yield ""
    yield f"Recall was {_made(part)}"
    yield ""
    yield f"| set | queries | tools | {' | '.join(names)} |"
    yield "|" + "---|" * (3 + len(names))
    for recall in part.sets:
        yield f"| {recall.name} | {recall.queries} | {recall.tools:,} | {' | '.join(_cells(recall, names))} |"


def _cells(recall: SetRecall, names: Sequence[str]) -> Iterator[str]:
    best = max((score.recall_at_5 for score in recall.scores.values()), default=0.0)
    for name in names:
        score = recall.scores.get(name)
        if score is None:
            yield recall.failed.get(name, "")
        else:
            yield f"**{_score(score)}**" if score.recall_at_5 == best else _score(score)


def _score(score: Score) -> str:
    (low, high), (low_10, high_10) = score.interval_at_5, score.interval_at_10
    at_5, at_10 = f"{score.recall_at_5:.1f}", f"{score.recall_at_10:.1f}"
    return f"{at_5} ({low:.0f} to {high:.0f}) / {at_10} ({low_10:.0f} to {high_10:.0f})"


def _latency(parts: Sequence[LatencyPart]) -> Iterator[str]:
    yield "## Time to answer, one caller at a time"
    yield ""
    yield from (f"- {part.tools:,} tools: {_made(part)}" for part in parts)
    yield ""
    yield "All systems are up at once and asked in turn, each query once, until a system's time is up."
    yield "The first answer counts from when the tools were read, without the time that the model takes for them."
    yield ""
    yield f"| {' | '.join(LATENCY_COLUMNS)} |"
    yield "|" + "---|" * len(LATENCY_COLUMNS)
    yield from (_latency_row(part.tools, system) for part in parts for system in part.systems)


def _latency_row(tools: int, row: Latency) -> str:
    if not row.answers:
        return f"| {tools:,} | {row.system} | {row.failed} |" + " |" * (len(LATENCY_COLUMNS) - 3)
    times = f"{row.p50:.1f} | {row.p95:.1f} | {row.without_model_p50:.1f} | {row.without_model_p95:.1f}"
    return f"| {tools:,} | {row.system} | {row.answers} | {times} | {row.ready_s:.1f} | {row.memory_mib:,.0f} |"


def _made(part: Part) -> str:
    busy = max((condition.others_percent for condition in part.conditions), default=0.0)
    where = f"on {part.machine.processor}, {part.machine.cores} cores"
    return f"made on {part.made_at}, {where}; other programs took up to {busy:.0f} % of the machine."
