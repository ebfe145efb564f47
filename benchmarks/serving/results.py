"""Results of a run as stored in JSON. The report is rendered from these values only."""

from __future__ import annotations

from benchmarks.serving.plan import Plan
from benchmarks.throughput.machine import Conditions, Machine
from benchmarks.throughput.results import Frozen, Latency, Spread

# The queries of a crowd that sends pings in place of questions.
PINGS = "pings"


class Asked(Frozen):
    """One tool of ours, or `tools/list`, asked by one client at a time."""

    what: str
    protocol: str
    latency: Latency


class Called(Frozen):
    """One tool of a scripted server, called at the server itself and through `call_tool`, in turns.

    `own` is the duration that the tool reports; the others are the additional latency of the client.
    `added` is how much longer a median call through Toolscale takes than one at the server.
    """

    transport: str
    protocol: str
    own: Latency
    direct: Latency
    through: Latency
    added_ms: Spread


class Crowd(Frozen):
    """Many clients that ask `find_tool`, or send pings, at once. Processor time is per answer, in ms of one core.

    `index_ms` is that of a Qdrant server; Qdrant Edge is part of `service_ms`.
    """

    queries: str
    processes: int
    clients: int
    answers: int
    answers_per_s: Spread
    latency: Latency
    service_ms: Spread
    index_ms: Spread
    clients_ms: Spread


class Served(Frozen):
    """A query service over a catalogue of one size."""

    tools: int
    servers: int
    asked: tuple[Asked, ...]
    called: tuple[Called, ...]
    crowds: tuple[Crowd, ...]


class Results(Frozen):
    """A whole run."""

    made_at: str
    seconds: float
    plan: Plan
    machine: Machine
    conditions: tuple[Conditions, ...]
    served: tuple[Served, ...]
