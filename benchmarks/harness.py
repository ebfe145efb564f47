"""What all benchmarks share: the command, the kept figures and their report, the machine, and the statistics.

A benchmark is a module with a docstring, which is also the beginning of its report, and three functions:

    def measure(plan, watches) -> Figures     # what `NAME.json` keeps, as plain values
    def render(figures) -> Iterator[str]      # the blocks of `NAME.md`, from those figures only
    def main()                                # run_benchmark(NAME, command(NAME, __doc__).parse_args(), ...)

`run_benchmark` adds the date, the machine and the conditions to the figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import re
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlsplit

import psutil

from shared.service.logging import configure_logging
from tests.support.qdrant_server import emptied_qdrant, qdrant_url

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# Outside the repository, which has no copy.
DATA = ROOT.parent / "shared" / "retrieval"

MIB = 1 << 20
PACKAGES = ("celery", "fastembed", "mcp", "onnxruntime", "qdrant-edge-py", "redis", "tiktoken", "toolscale")
# Above this share of the processors used by others, a result counts as disturbed.
DISTURBED_PERCENT = 10.0
GREEN_WITHIN_S, POLL_S = 1_800.0, 0.5
# Suffixes of names, and how a heading shows them.
UNITS = {"_per_s ": " a second", "_ms ": ", ms", "_s ": ", s", "_kib ": ", KiB", "_mib ": ", MiB", "_percent ": ", %"}

Figures = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


# The command


def command(name: str, doc: str | None, *, has_quick: bool = True, needs_demo: bool = False) -> argparse.ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME` with the common options; its help is the docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if has_quick:
        parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything still runs")
    if needs_demo:
        parser.add_argument("--demo", type=Path, default=ROOT / ".demo", help="directory of the demo's servers")
    parser.add_argument("--render", action="store_true", help="measure nothing, render the kept JSON again")
    parser.add_argument("--output", type=Path, default=RESULTS, help="directory of the JSON and the Markdown")
    return parser


def run_benchmark(
    name: str,
    arguments: argparse.Namespace,
    measure: Callable[[Watches], Figures],
    render: Callable[[Figures], Iterable[str]],
) -> Figures:
    """Measure and keep `NAME.json`, unless `--render` is given; write `NAME.md` from it, and return the figures."""
    configure_logging("ERROR")
    if not arguments.render:
        arguments.output.mkdir(parents=True, exist_ok=True)  # before a measurement that may take an hour
        watches = Watches()
        measured = measure(watches)
        keep(name, arguments.output, {**made(), **watches.figures(), **measured})
    return report(name, arguments.output, render)


def kept_name(name: str) -> str:
    """Return the name of the results of a benchmark of the index: those on a Qdrant server have files of their own."""
    return f"{name}-qdrant" if qdrant_url() else name


def kept(name: str, directory: Path = RESULTS) -> Figures:
    """Return the figures of `NAME.json`; none where there is no file."""
    file = directory / f"{name}.json"
    return cast("Figures", json.loads(file.read_bytes())) if file.exists() else {}


def keep(name: str, directory: Path, figures: Figures) -> None:
    """Write `NAME.json`; a benchmark of several parts does so after each of them."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def report(name: str, directory: Path, render: Callable[[Figures], Iterable[str]]) -> Figures:
    """Write `NAME.md` from `NAME.json`, and return the figures."""
    figures, rendered = kept(name, directory), directory / f"{name}.md"
    rendered.write_text(document(render(figures)), encoding="utf-8")
    print(f"Wrote {rendered}")
    return figures


# The machine, and other programs on it


def this_machine() -> Figures:
    """Return the hardware and the versions of this machine."""
    cpuinfo = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    return {
        "processor": named[1] if named else platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def made() -> Figures:
    """Return the date and the machine of a run, or of a part that is measured by itself."""
    return {"made_at": f"{datetime.now(UTC):%Y-%m-%d}", "machine": this_machine()}


class Watches:
    """The seconds of a run, and the conditions of its subjects, which are measured one after the other."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self.conditions: list[Figures] = []

    def measure(self, subject: str, measure: Callable[[], T]) -> T:
        """Return the result of `measure`; keep and print the conditions.

        `others_percent`: processor time that other programs, or the host, took, of all cores together.
        Processes that this one started count as its own once they have ended.
        """
        started_s, others_s = time.perf_counter(), _others_s()
        found = measure()
        seconds = time.perf_counter() - started_s
        others = 100 * (_others_s() - others_s) / (seconds * (os.cpu_count() or 1))
        conditions = {"subject": subject, "seconds": round(seconds, 1), "others_percent": round(max(others, 0.0), 1)}
        self.conditions.append(conditions)
        print(f"{subject}: measured in {seconds:.0f} s", flush=True)
        return found

    def figures(self) -> Figures:
        """Return the seconds since the start, and the conditions."""
        return {"seconds": round(time.perf_counter() - self._started_s, 1), "conditions": self.conditions}


def _others_s() -> float:
    """Return the processor seconds that were not idle and not this process's or its ended children's."""
    machine, own = psutil.cpu_times(), os.times()
    idle = machine.idle + getattr(machine, "iowait", 0.0)
    # guests are counted in user time already
    guests = getattr(machine, "guest", 0.0) + getattr(machine, "guest_nice", 0.0)
    return sum(machine) - idle - guests - (own.user + own.system + own.children_user + own.children_system)


def processor_s(process: psutil.Process) -> float:
    """Return the seconds of processor time that the process took so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def peak_mib(process: psutil.Process) -> float:
    """Return the maximum of the process's resident memory, or the present one where the kernel keeps no maximum."""
    # not getrusage: on Linux a child's ru_maxrss begins with what its parent had when it was forked
    status = Path(f"/proc/{process.pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    # the kernel notes the maximum a little late
    return round(max(process.memory_info().rss / MIB, int(found[1]) / 1024 if found else 0.0), 1)


def disk_mib(files: Iterable[Path]) -> float:
    """Return the space that these files take: blocks, since an index reserves more than it writes."""
    return round(sum(file.stat().st_blocks for file in files if file.is_file()) * 512 / MIB, 1)


def in_fresh_process(measure: Callable[Concatenate[Path, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `measure` returns, called in a new process with an empty directory as its first argument.

    A Qdrant server at QDRANT_URL must be empty, and is emptied at the end.
    """
    spawn = multiprocessing.get_context("spawn")
    with (
        emptied_qdrant(),
        tempfile.TemporaryDirectory(prefix="toolscale-bench-") as directory,
        ProcessPoolExecutor(1, mp_context=spawn, initializer=configure_logging, initargs=("ERROR",)) as pool,
    ):
        return pool.submit(measure, Path(directory), *args, **kwargs).result()


# Statistics


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that at least this share of the samples does not exceed (nearest rank)."""
    rank = -(-len(samples) * percent // 100)
    return sorted(samples)[max(int(rank), 1) - 1]


def percentiles(samples: Sequence[float], *percents: int) -> Figures:
    """Return the percentiles as `p50`, `p95` and so on, rounded to a hundredth."""
    return {f"p{percent}": round(percentile(samples, percent), 2) for percent in percents}


def spread(values: Sequence[float]) -> Figures:
    """Return the median of the repetitions, the lowest and the highest, rounded to a thousandth."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def latency(repetitions: Sequence[Sequence[float]]) -> Figures:
    """Return the spreads of p50, p95 and the highest, each taken within a repetition."""
    return {
        "p50": spread([percentile(samples, 50) for samples in repetitions]),
        "p95": spread([percentile(samples, 95) for samples in repetitions]),
        "highest": spread([max(samples) for samples in repetitions]),
    }


# The report


def document(blocks: Iterable[str]) -> str:
    """Return the Markdown of these blocks: headings, paragraphs, lists and tables."""
    return "\n\n".join(blocks) + "\n"


def title(doc: str | None) -> Iterator[str]:
    """Yield the docstring of a benchmark as the beginning of its report."""
    first, _, body = (doc or "").partition("\n")
    yield f"# {first.rstrip('.')}"
    yield body.strip("\n").rstrip()


def head(doc: str | None, figures: Figures) -> Iterator[str]:
    """Yield the beginning of a report: the docstring of the benchmark, and when and where the run was made."""
    yield from title(doc)
    run = f"{figures['plan']['name']} run" if "plan" in figures else "run"
    seconds = f", in {figures['seconds']:.0f} s" if "seconds" in figures else ""
    yield f"A {run} on {figures['made_at']}{seconds}.\n{hardware(figures['machine'])}"
    if figures.get("conditions"):
        yield others(figures["conditions"])


def hardware(machine: Figures) -> str:
    """Return two lines on the machine and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}.\n"
        f"Python {machine['python']}, {versions}."
    )


def others(conditions: Sequence[Figures]) -> str:
    """Return a line on the subjects during which other programs took more than a tenth of the processors."""
    disturbed = [each for each in conditions if each["others_percent"] > DISTURBED_PERCENT]
    if not disturbed:
        return "Other programs took less than a tenth of the processors."
    named = ", ".join(f"{each['subject']} {each['others_percent']:.0f} %" for each in disturbed)
    return f"Other programs took a share of the processors, so trust ratios over absolute numbers: {named}."


def filled(text: str, table_of: Callable[[str], str]) -> str:
    """Return the document with each table between `<!-- table: NAME -->` and `<!-- end -->` rendered again."""
    marked = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marked.sub(lambda found: f"{found[1]}{table_of(found[2])}\n{found[3]}", text)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (headings, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headings)}", *lines[1:]])


def number(value: float) -> str:
    """Return three significant digits, or all before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread_cell(found: Figures) -> str:
    """Return `median (lowest to highest)`, or only the number if all repetitions agree."""
    median, lowest, highest = (number(found[name]) for name in ("median", "lowest", "highest"))
    return median if lowest == median == highest else f"{median} ({lowest} to {highest})"


def cell(value: object) -> str:
    """Return a figure as a table shows it: text, a count, a number, or the spread of one."""
    if isinstance(value, dict):
        return spread_cell(cast("Figures", value))
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def figures_table(rows: Iterable[Figures], *paths: str) -> str:
    """Return a table of the figures at these paths, whose headings are their names.

    `answers.p95` is the figure `p95` within `answers`; a suffix such as `_ms` is shown as the unit.
    """
    headings = [re.sub("|".join(UNITS), lambda found: UNITS[found[0]], path + " ") for path in paths]
    cells = [[cell(reduce(getitem, path.split("."), row)) for path in paths] for row in rows]
    return table([re.sub(r"[_.]", " ", heading).strip() for heading in headings], cells)


# The Qdrant server at QDRANT_URL


def server_process(url: str) -> psutil.Process:
    """Return the process that listens at this address of this machine.

    Raises:
        SystemExit: no process of this machine does.
    """
    port = urlsplit(url).port
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr[1] == port and connection.pid:  # type: ignore[misc]
            return psutil.Process(connection.pid)
    raise SystemExit(f"no process of this machine listens at {url}")


def server_cpu_s() -> float:
    """Return the processor seconds of the Qdrant server since its start; 0 without a server."""
    url = qdrant_url()
    return processor_s(server_process(url)) if url else 0.0


def wait_until_indexed() -> None:
    """Return when the optimizers of all collections of the Qdrant server are idle; at once without a server.

    Raises:
        SystemExit: they are not idle within half an hour.
    """
    url = qdrant_url()
    if url is None:
        return
    deadline = time.monotonic() + GREEN_WITHIN_S
    for collection in read_json(f"{url}/collections")["result"]["collections"]:
        name = str(collection["name"])
        while read_json(f"{url}/collections/{quote(name)}")["result"]["status"] != "green":
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is not green after {GREEN_WITHIN_S:g} s")
            time.sleep(POLL_S)


def read_json(url: str) -> Figures:
    """Return the JSON at this address."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return cast("Figures", json.load(response))
