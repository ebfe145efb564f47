"""How long each system takes to answer at a catalogue's size: all are up at once, and asked in turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.corpora import write_tools
from benchmarks.peers.launching import Launcher
from benchmarks.peers.process import Answer, BrokenError, OutOfTimeError, Ready, System
from benchmarks.peers.results import Latency

K = 10
# A longer query would be searched by its clauses as well.
MAX_WORDS = 15
READY_S = 420.0
ALL_ANSWERS_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits of a system: seconds to get ready, for one answer, and for all queries of a size."""

    ready_s: float = READY_S
    answer_s: float = 60.0
    all_answers_s: float = ALL_ANSWERS_S


@dataclass(slots=True)
class Asked:
    """A system in a measurement, and what it has answered so far."""

    name: str
    system: System
    ready: Ready | None = None
    answers: list[Answer] = field(default_factory=list[Answer])
    failed: str = ""

    def has_time(self, limits: Limits) -> bool:
        """Return whether it is to be asked again."""
        return not self.failed and sum(answer.seconds for answer in self.answers) < limits.all_answers_s


def measure_latency(
    corpus: Path, size: int, queries: Sequence[str], launcher: Launcher, limits: Limits
) -> list[Latency]:
    """Return how long each system takes for these queries among so many tools; each query is asked once."""
    asked = [" ".join(query.split()[:MAX_WORDS]) for query in queries]
    with TemporaryDirectory(prefix="toolscale-peers-") as directory, ExitStack() as stack:
        file = Path(directory) / "tools.jsonl"
        write_tools([corpus], file, size)
        systems = list(_started(file, launcher, limits, stack))
        for turn, text in enumerate(asked):
            for system in _rotated(systems, turn):
                if system.has_time(limits):
                    _ask(system, text, limits)
        return [_latency(system) for system in systems]


def _started(file: Path, launcher: Launcher, limits: Limits, stack: ExitStack) -> Iterator[Asked]:
    """Yield the systems, started one after the other, so that none takes from another's time to build."""
    for name in launcher.names:
        started = Asked(name, stack.enter_context(launcher.running(name, file)))
        try:
            started.ready = started.system.ready(limits.ready_s)
            print(f"  {name} ready after {started.ready.ready_s:.1f} s", flush=True)
        except (OutOfTimeError, BrokenError) as error:
            started.failed = f"not ready: {error}"
            print(f"  {name} {started.failed}", flush=True)
        yield started


def _rotated(systems: Sequence[Asked], turn: int) -> Iterable[Asked]:
    first = turn % len(systems)
    return (*systems[first:], *systems[:first])


def _ask(asked: Asked, text: str, limits: Limits) -> None:
    try:
        asked.answers.append(asked.system.ask([text], K, limits.answer_s))
    except (OutOfTimeError, BrokenError) as error:
        asked.failed = str(error)


def _latency(asked: Asked) -> Latency:
    if asked.ready is None or not asked.answers:
        return Latency(system=asked.name, failed=asked.failed)
    whole = [1000 * answer.seconds for answer in asked.answers]
    without_model = [1000 * (answer.seconds - answer.embed_s) for answer in asked.answers]
    return Latency(
        system=asked.name,
        answers=len(whole),
        ready_s=round(asked.ready.ready_s, 1),
        memory_mib=round(asked.ready.memory_mib),
        p50=_rounded(statistics.median(whole)),
        p95=_p95(whole),
        without_model_p50=_rounded(statistics.median(without_model)),
        without_model_p95=_p95(without_model),
        failed=asked.failed,
    )


def _p95(milliseconds: Sequence[float]) -> float:
    """Return the 95th percentile by nearest rank."""
    ranked = sorted(milliseconds)
    return _rounded(ranked[-(-len(ranked) * 95 // 100) - 1])


def _rounded(milliseconds: float) -> float:
    return round(milliseconds, 1)
