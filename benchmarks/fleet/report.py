"""The results as Markdown: the targets and what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.fleet.results import Answers, Crowd, Findables, Haystack, MetricsBySize, Results, Stages, Storm
from benchmarks.fleet.targets import targets
from benchmarks.throughput.report import DISTURBED_PERCENT, number, table

ANSWERS = ("answers", "p50", "p95", "p99", "highest")


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = [_head(results), _targets(results), _caveats(results)]
    if results.storm:
        sections.append(_storm(results.storm))
    if results.crowd:
        sections.append(_crowd(results.crowd))
    if results.findable:
        sections.append(_findable(results.findable))
    if results.haystack:
        sections += [_haystack(results.haystack), _stages(results.haystack.stages)]
    if results.metrics:
        sections.append(_metrics(results.metrics))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield "# Fleet"
    yield ""
    yield "Runs of `make bench-fleet`, part by part."
    yield "Rendered from the JSON file beside it; questions and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield f"Python {machine.python}, {versions}."
    yield ""
    rows = [
        (name, part.made_at, part.plan, part.index, f"{part.conditions.seconds:.0f}", _others(part.conditions))
        for name, part in results.parts.items()
    ]
    yield from table(("part", "on", "run", "index", "seconds", "of the processors, others took"), rows)


def _others(conditions: object) -> str:
    percent = float(getattr(conditions, "others_percent", 0.0))
    return f"{percent:.0f} %, so trust ratios" if percent > DISTURBED_PERCENT else f"{percent:.0f} %"


def _targets(results: Results) -> Iterator[str]:
    yield "## Targets"
    yield ""
    rows = [
        (
            query_set.what,
            f"{query_set.bound:,g}{query_set.unit}",
            f"{number(query_set.measured)}{query_set.unit}",
            "yes" if query_set.is_met else "no",
        )
        for query_set in targets(results)
    ]
    yield from table(("what", "at most", "measured", "met"), rows)


def _caveats(results: Results) -> Iterator[str]:
    yield "## Keep in mind"
    yield ""
    yield f"- Workers, query service, Redis, the fleet, and whoever asks share {results.machine.cores} cores."
    yield "- The fleet is scripted and on loopback, so it answers faster than most; waiting costs a worker nothing."
    yield "- One process holds Qdrant Edge: storm and findable have worker and query service in one."
    yield "- Processor seconds are those of the worker processes; in the storm query service and door are among them."


def _storm(found: Storm) -> Iterator[str]:
    yield "## A storm of events"
    yield ""
    yield f"{found.events:,} events for {found.servers} servers with {found.tools:,} tools, all of it unchanged;"
    yield f"{found.distinct:,} distinct ones, the others duplicates. Agents ask find_tool over MCP meanwhile; ms."
    yield ""
    rows = [
        (
            run.way,
            number(run.sent_s),
            number(run.drained_s),
            run.listings,
            run.tools_written,
            number(run.cpu_s),
            *_answers(run.answers),
        )
        for run in found.runs
    ]
    headings = ("sent as", "sent in s", "drained in s", "listings", "tools written", "processor s", *ANSWERS)
    yield from table(headings, rows)


def _crowd(found: Crowd) -> Iterator[str]:
    replicas = found.replicas
    yield "## Replicas, and a resync of all"
    yield ""
    yield f"{replicas.servers:,} replicas of one server, {replicas.tools:,} tools in all, ingested by one worker"
    yield f"in {number(replicas.seconds)} s of the clock, {number(replicas.cpu_s)} of its processor,"
    yield f"and with {number(replicas.peak_mib)} MiB at most:"
    yield f"{replicas.counted:,} texts counted, {replicas.embedded:,} embedded."
    yield "Then all servers due at once; only the first listing of a server by a worker has a version probe:"
    yield ""
    rows = [
        (
            resync.protocol,
            resync.listing,
            f"{resync.servers:,}",
            f"{resync.tools:,}",
            f"{resync.listings:,}",
            resync.tools_written,
            number(resync.seconds),
            number(resync.cpu_s),
            number(resync.peak_mib),
            f"{resync.redis_commands:,}",
            number(resync.redis_grown_mib),
        )
        for resync in found.resyncs
    ]
    yield from table(
        (
            "protocol",
            "listing by the worker",
            "servers",
            "tools",
            "listings",
            "tools written",
            "seconds",
            "processor s",
            "peak MiB",
            "Redis commands",
            "Redis MiB more",
        ),
        rows,
    )


def _findable(found: Findables) -> Iterator[str]:
    yield "## From event to findable"
    yield ""
    yield "From the event until find_tool, asked over MCP every 20 ms, returns the server's last tool; ms."
    yield ""
    rows = [(run.load, run.tools, *_answers(run.answers)) for run in found.runs]
    yield from table(("load", "tools", "servers", *ANSWERS[1:]), rows)


def _haystack(found: Haystack) -> Iterator[str]:
    yield "## A whole catalogue at once"
    yield ""
    yield f"{found.corpus_servers:,} servers with {found.corpus_tools:,} tools of a public corpus, all announced at"
    yield "once; then a sample of them, for comparison."
    yield ""
    rows = [
        (
            ingestion.setting,
            f"{ingestion.servers:,}",
            f"{ingestion.tools:,}",
            number(ingestion.seconds),
            number(ingestion.tools_per_s),
            number(ingestion.cpu_s),
            number(ingestion.peak_mib),
            number(ingestion.disk_mib),
        )
        for ingestion in found.ingestions
    ]
    yield from table(
        ("setting", "servers", "tools written", "seconds", "tools a second", "processor s", "peak MiB", "disk MiB"),
        rows,
    )


def _stages(found: Stages) -> Iterator[str]:
    yield "## The same, stage by stage"
    yield ""
    yield f"{found.servers:,} of these servers with {found.tools:,} tools, looked at one after the other by one thread,"
    yield f"in {number(found.seconds)} s. Each tool has two texts to embed."
    yield ""
    rows = [
        (stage.name, number(stage.seconds), number(100 * stage.seconds / found.seconds), f"{stage.items:,}")
        for stage in found.stages
    ]
    yield from table(("stage", "seconds", "share in %", "items"), rows)


def _metrics(found: MetricsBySize) -> Iterator[str]:
    yield "## Token metrics while events arrive"
    yield ""
    yield f"In the embedded composition, {found.event_rate:g} events a second of servers that did change,"
    yield f"and {found.question_rate:g} questions a second; ms."
    yield ""
    rows = [
        (
            f"{size.tools:,}",
            f"{size.servers:,}",
            number(size.resident_mib),
            size.events,
            size.looks,
            part,
            *_answers(answers),
        )
        for size in found.sizes
        for part, answers in (("token metrics", size.token_metrics), ("search and token metrics", size.find_tool))
    ]
    yield from table(("tools", "servers", "MiB", "events", "looks", "part", *ANSWERS), rows)


def _answers(answers: Answers) -> tuple[str, ...]:
    shown = (answers.p50, answers.p95, answers.p99, answers.highest)
    return (f"{answers.count:,}", *(number(duration) for duration in shown))
