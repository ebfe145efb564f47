"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.throughput.results import Events, Found, Ingestion, Latency, Looks, Results, Spread

# Above this share of the processor used by others, a result counts as disturbed.
DISTURBED_PERCENT = 10.0

Row = Sequence[object]


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = (
        _head(results),
        _caveats(results),
        _events(results.events),
        _ingestion(results.ingestion),
        _looks("A new server, stage by stage", results.new),
        _looks("An unchanged server", results.unchanged),
        *map(_found, results.found),
        _counted(results),
        _memory(results),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield "# Throughput and latency"
    yield ""
    yield f"A {results.plan.name} run of `make bench` on {results.made_at}, in {results.seconds:.0f} s."
    yield "Rendered from the JSON file beside it; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield f"Python {machine.python}, {versions}."
    yield ""
    repetitions = results.plan.repetitions
    yield (
        f"Repeated {repetitions} times: medians, with the lowest and highest in brackets."
        if repetitions > 1
        else "One run."
    )


def _caveats(results: Results) -> Iterator[str]:
    yield "## Keep in mind"
    yield ""
    yield "- Servers, worker, query service, client and this benchmark share the machine's cores."
    yield "- Tool definitions are generated, with the sizes of public ones; they are more alike than those are."
    yield "- Vectors beyond the ingested tools are random directions, which have no near neighbours."
    yield "- All traffic is on loopback; a real network adds its round trips to each look at a server."
    yield f"- {_others(results)}"


def _others(results: Results) -> str:
    disturbed = [result for result in results.conditions if result.others_percent > DISTURBED_PERCENT]
    if not disturbed:
        return "Other programs took less than a tenth of the processors during each subject."
    named = ", ".join(f"{condition.subject} {condition.others_percent:.0f} %" for condition in disturbed)
    return f"Other programs took a share of the processors, so trust ratios over absolute numbers: {named}."


def _events(found: Sequence[Events]) -> Iterator[str]:
    yield "## Events per second"
    yield ""
    yield "`changed`: one event each for as many servers, which are listed and found unchanged;"
    yield "`storm`: all events for one server; `down`: one each, nothing is listed."
    yield "Recorded: durable, and a worker told. Committed: from the first event to the last commit."
    yield ""
    rows = [
        (events.composition, rate.kind, rate.events, spread(rate.recorded_per_s), spread(rate.committed_per_s))
        for events in found
        for rate in events.rates
    ]
    yield from table(("composition", "kind", "events", "recorded a second", "committed a second"), rows)


def _ingestion(found: Ingestion) -> Iterator[str]:
    yield "## Ingestion"
    yield ""
    yield f"{found.servers} new servers announced at once to the embedded composition, {found.tools:,} tools"
    yield f"of {found.tokens_per_tool:g} tokens in the mean, the model loaded before;"
    yield f"then single servers of {found.late_server_tools} tools, one after the other."
    yield ""
    late = found.event_to_commit_ms
    rows = [
        ("tools a second", spread(found.tools_per_s)),
        ("seconds for all", spread(found.seconds)),
        ("one server, event to commit, p50 in ms", spread(late.p50)),
        ("one server, event to commit, p95 in ms", spread(late.p95)),
    ]
    yield from table(("measure", "value"), rows)


def _looks(title: str, found: Looks) -> Iterator[str]:
    yield f"## {title}"
    yield ""
    yield f"{found.servers} servers with {found.tools:,} tools, one after the other in one thread:"
    yield f"{spread(found.ms_per_server)} ms a server."
    yield f"Items are over all repetitions ({found.repetitions}); a text counts once for each encoding."
    yield ""
    items = {"list": "servers", "count": "counts", "embed": "texts embedded", "write": "tools written"}
    rows = [
        (
            stage.name,
            spread(stage.ms_per_server),
            spread(stage.share_percent),
            f"{stage.items:,} {items[stage.name]}" if stage.name in items else "",
        )
        for stage in found.stages
    ]
    yield from table(("stage", "ms a server", "share in %", "items"), rows)


def _found(found: Found) -> Iterator[str]:
    yield f"## find_tool at {found.tools:,} tools of {found.servers} servers"
    yield ""
    yield "Eight tools an answer, one call at a time, in ms."
    yield "The whole call goes over streamable HTTP to a query service in a process of its own."
    yield ""
    rows = [
        ("embed the query, never asked before", *_latency(found.embed)),
        ("embed the query, asked before", *_latency(found.embed_cached)),
        ("search", *_latency(found.search)),
        ("token metrics", *_latency(found.sum)),
        ("search and token metrics", *_latency(found.without_embed)),
        ("whole MCP call, never asked before", *_latency(found.mcp)),
        ("whole MCP call, asked before", *_latency(found.mcp_cached)),
    ]
    yield from table(("part", "p50", "p95", "highest"), rows)


def _counted(results: Results) -> Iterator[str]:
    yield "## Counting tokens"
    yield ""
    rows = [(f"{count.tools:,}", count.encoding, f"{count.tokens:,}", spread(count.ms)) for count in results.counted]
    yield from table(("tools", "encoding", "tokens", "ms"), rows)


def _memory(results: Results) -> Iterator[str]:
    yield "## Memory of the embedded process"
    yield ""
    yield "Worker, query service, model, vocabularies and Qdrant Edge in one process; resident, in MiB."
    yield ""
    yield from table(("moment", "MiB"), [(sample.moment, spread(sample.mib)) for sample in results.memory])


def _latency(latency: Latency) -> tuple[str, str, str]:
    return spread(latency.p50), spread(latency.p95), spread(latency.highest)


def spread(spread: Spread) -> str:
    """Return `median (lowest to highest)`, or only the number if all repetitions agree."""
    shown = [number(value) for value in (spread.median, spread.lowest, spread.highest)]
    return shown[0] if len(set(shown)) == 1 else f"{shown[0]} ({shown[1]} to {shown[2]})"


def number(value: float) -> str:
    """Return three significant digits, or all before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(headings: Sequence[str], rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
