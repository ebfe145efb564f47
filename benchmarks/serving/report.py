"""The results as Markdown: what to keep in mind first, then the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.serving.results import PINGS, Asked, Crowd, Results, Served
from benchmarks.throughput.report import DISTURBED_PERCENT, number, spread, table
from benchmarks.throughput.results import Latency

LONGEST_WAIT_MS = 1_000


def render(results: Results) -> str:
    """Return the whole report; every number in it comes from `results`."""
    sections = [_head(results), _caveats(results)]
    for served in results.served:
        sections += [_asked(served), _called(served, results), _crowds(served)]
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _head(results: Results) -> Iterator[str]:
    machine, plan = results.machine, results.plan
    versions = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
    yield "# What clients wait for"
    yield ""
    yield f"A {plan.name} run of `python -m benchmarks.serving` on {results.made_at}, in {results.seconds:.0f} s."
    yield "Rendered from the JSON file beside it; question and method are in [the README](../README.md)."
    yield ""
    yield f"{machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, {machine.system}."
    yield f"Python {machine.python}, {versions}."
    yield ""
    yield (
        f"Repeated {plan.repetitions} times: medians, with the lowest and highest in brackets."
        if plan.repetitions > 1
        else "One run."
    )


def _caveats(results: Results) -> Iterator[str]:
    yield "## Keep in mind"
    yield ""
    yield "- Query services, clients, scripted servers and a Qdrant server share the machine's cores."
    yield "- The clients are those of the MCP SDK, all in one process: what they themselves take is part of each time."
    yield "- Tool definitions and questions are generated, vectors are random directions."
    yield "- All traffic is on loopback. Toolscale is always asked over HTTP, also where it calls a server over stdio."
    yield f"- {_others(results)}"


def _others(results: Results) -> str:
    disturbed = [condition for condition in results.conditions if condition.others_percent > DISTURBED_PERCENT]
    if not disturbed:
        return "Other programs took less than a tenth of the processors at each size."
    named = ", ".join(f"{condition.subject} {condition.others_percent:.0f} %" for condition in disturbed)
    return f"Other programs took a share of the processors, so trust ratios over absolute numbers: {named}."


def _asked(served: Served) -> Iterator[str]:
    yield f"## Each tool alone, at {served.tools:,} tools of {served.servers} servers"
    yield ""
    yield "One client over streamable HTTP, one question after the other, searches never asked before; in ms."
    yield ""
    first, *_ = protocols = list(dict.fromkeys(question.protocol for question in served.asked))
    rows = [
        (question.what, *_in_each(served, question.what, protocols))
        for question in served.asked
        if question.protocol == first
    ]
    heads = [f"{protocol}, {column}" for protocol in protocols for column in ("p50", "p95", "highest")]
    yield from table(("question", *heads), rows)


def _in_each(served: Served, what: str, protocols: list[str]) -> Iterator[str]:
    by_protocol: dict[str, Asked] = {question.protocol: question for question in served.asked if question.what == what}
    for protocol in protocols:
        yield from _latency(by_protocol[protocol].latency)


def _called(served: Served, results: Results) -> Iterator[str]:
    yield f"## call_tool, at {served.tools:,} tools"
    yield ""
    yield f"A tool that takes {results.plan.work_ms:g} ms and says how long it took, called at its server and through"
    yield "Toolscale in turns, the connections open; in ms beyond the tool's own time, which is the client's, the"
    yield "server's and, between them, Toolscale's. `added`: through Toolscale less at the server, of the medians."
    yield ""
    rows = [
        (
            calls.transport,
            calls.protocol,
            spread(calls.direct.p50),
            spread(calls.through.p50),
            spread(calls.through.p95),
            spread(calls.through.highest),
            spread(calls.added_ms),
        )
        for calls in served.called
    ]
    heads = ("server over", "client speaks", "at the server, p50", "through, p50", "through, p95", "highest", "added")
    yield from table(heads, rows)


def _crowds(served: Served) -> Iterator[str]:
    yield f"## find_tool for many clients at once, at {served.tools:,} tools"
    yield ""
    yield f"Each sends its next question after an answer; about {served.crowds[0].answers:,} answers a repetition."
    yield "Waiting in ms. Processor time in ms of one core for each answer, which bounds the rate."
    longest = max(crowd.latency.highest.highest for crowd in served.crowds)
    yield f"The longest wait of all was {number(longest)} ms; the target is at most {LONGEST_WAIT_MS:,}."
    yield ""
    rows = [
        (
            f"{crowd.clients}",
            f"{crowd.processes}",
            crowd.queries,
            *_latency(crowd.latency),
            spread(crowd.answers_per_s),
            spread(crowd.service_ms),
            spread(crowd.index_ms),
            spread(crowd.clients_ms),
        )
        for crowd in served.crowds
    ]
    waits, processor = ("p50", "p95", "highest"), ("service", "Qdrant server", "clients")
    heads = ("clients", "processes", "questions", *waits, "answers a second", *(f"processor, {of}" for of in processor))
    yield from table(heads, rows)
    yield from _in_pings(served.crowds)


def _in_pings(crowds: Sequence[Crowd]) -> Iterator[str]:
    """Yield the processor time of answers in that of pings: this depends less on the machine."""
    ping_ms = {(crowd.clients, crowd.processes): crowd.service_ms.median for crowd in crowds if crowd.queries == PINGS}
    rows = [
        (f"{crowd.clients}", f"{crowd.processes}", crowd.queries, number(crowd.service_ms.median / each_ms))
        for crowd in crowds
        if crowd.queries != PINGS and (each_ms := ping_ms.get((crowd.clients, crowd.processes)))
    ]
    if rows:
        yield ""
        yield from table(("clients", "processes", "questions", "processor time of the service, in pings"), rows)


def _latency(latency: Latency) -> tuple[str, str, str]:
    return spread(latency.p50), spread(latency.p95), spread(latency.highest)
