"""`toolscale costs`: the tokens that the tools of some servers take, without a catalogue.

The servers of an mcp.json, or of the user's clients, are listed, as many at a time as there are cores; their tools are
counted in the wire form and in each profile of the model form, beside Toolscale's own.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import CountFailed, ServerError
from shared.quoting import printable, quoted_name
from shared.text.tokens import PROFILE, PROFILES, counter, estimate_tool, is_estimate, model_text
from shared.upstream.dial import dialler_for
from shared.upstream.mcp_json import Config, config_of
from shared.upstream.target import STDIO_START_TIMEOUT_S
from toolscale.console import number_columns, out, percent, print_table, thousands
from toolscale.mcp_clients.clients import Client, client_files, named_file, this_machine
from toolscale.mcp_clients.files import config_path
from toolscale.mcp_clients.find import find_servers
from toolscale.mcp_clients.merge import merge
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.turns import interrupt_fetches

if TYPE_CHECKING:
    from shared.catalog import Encoding, Listing, ToolDefinition
    from shared.events import ServerAnnouncement
    from shared.settings import Settings

COLUMNS = ("wire", *PROFILES)
_INTERRUPT_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class ListableServers:
    """The usable servers, the reasons against the others by name, and the files of both."""

    config: Config
    unusable: tuple[tuple[str, str], ...]
    files: tuple[Path, ...]


def servers_of(settings: Settings) -> ListableServers:
    """Return the servers of the settings' mcp.json, else of the data directory's, else of the user's clients.

    Raises:
        ConfigInvalid: the mcp.json cannot be read, or has no servers in a known form.
    """
    path = config_path(settings)
    if settings.mcp_config or path.is_file():
        files = [named_file(path.absolute())]
    else:  # without the files of projects: their commands may be another person's
        files = [file for file in client_files(this_machine(), Path.cwd(), Client) if not file.project]
    found = find_servers(files, this_machine(), settings)
    config = config_of(merge({}, found.servers, "rename").servers, os.environ)
    parts = [entry.reason.partition(": ") for entry in found.skipped]  # a reason begins with the name
    skipped = [(name, reason) for name, _, reason in parts]
    unusable = (*skipped, *((entry.name, entry.reason) for entry in config.problems))
    return ListableServers(config, unusable, tuple(file.path for file in found.read))


@dataclass(frozen=True, slots=True)
class Cost:
    """The number of some tools, and their tokens by column; `uncounted` tools are in no sum of tokens."""

    tools: int
    tokens: Mapping[str, int]
    uncounted: int = 0


def cost_of(server_id: str, definitions: Iterable[ToolDefinition], encoding: Encoding) -> Cost:
    """Return the cost of a server's tools."""
    tools, uncounted, tokens = 0, 0, Counter[str](dict.fromkeys(COLUMNS, 0))
    for definition in definitions:
        tools += 1
        try:
            tokens.update(_tokens(server_id, definition, encoding))
        except CountFailed:
            uncounted += 1
    return Cost(tools, dict(tokens), uncounted)


def own_cost(encoding: Encoding) -> Cost:
    """Return the cost of the `tools/list` of Toolscale itself.

    The first call loads the query side, which takes as long as a server that starts: list servers meanwhile.
    """
    from query.tools.registry import builtin_definitions  # noqa: PLC0415

    return cost_of("toolscale", builtin_definitions(), encoding)


def total_of(costs: Iterable[Cost]) -> Cost:
    """Return the sum of these costs."""
    costs = list(costs)
    tokens = {column: sum(cost.tokens[column] for cost in costs) for column in COLUMNS}
    return Cost(sum(cost.tools for cost in costs), tokens, sum(cost.uncounted for cost in costs))


def _tokens(server_id: str, definition: ToolDefinition, encoding: Encoding) -> dict[str, int]:
    if is_estimate(encoding):
        return dict.fromkeys(COLUMNS, estimate_tool(server_id, definition))
    texts = {"wire": definition.wire} | {profile: model_text(definition, profile) for profile in PROFILES}
    count = counter(encoding)
    return {column: count(text) for column, text in texts.items()}


@dataclass(frozen=True, slots=True)
class ServerCost:
    """The cost of a server's tools; None: it could not be listed. `problem` is the reason for missing tools.

    `is_tried` is false for an entry that is switched off, or that is Toolscale itself.
    """

    server_id: str
    cost: Cost | None
    problem: str | None = None
    is_tried: bool = True


def server_costs(
    found: ListableServers, settings: Settings, encoding: Encoding, on_progress: Callable[[int], None]
) -> list[ServerCost]:
    """List all servers and return their costs, the costliest first; `on_progress` gets the number of listed servers."""
    list_one = partial(_cost, lister(found.config, settings), encoding)
    with _running([partial(list_one, server) for server in found.config.announcements]) as futures:
        for done, _ in enumerate(as_completed(futures), start=1):
            on_progress(done)
        costs = [future.result() for future in futures]
    unset = {entry.name for entry in found.config.problems}
    costs += [ServerCost(name, None, reason, name in unset) for name, reason in found.unusable]
    return sorted(costs, key=lambda each: (-each.cost.tokens["generic"] if each.cost else 1, each.server_id))


def lister(config: Config, settings: Settings) -> Callable[[ServerAnnouncement], Listing]:
    """Return the function that lists the tools of one of these servers, without those that its entry excludes.

    It raises a ServerError if the server cannot be listed.
    """
    dialler = dialler_for(settings, os.environ, config.targets, keeps_logs=False)
    limits = Limits(timeout_s=settings.listing_timeout_s, start_timeout_s=STDIO_START_TIMEOUT_S)

    def list_server(server: ServerAnnouncement) -> Listing:
        target = dialler.listing_target(server.server_id, server.endpoint, server.labels)
        listing = fetch_tools_blocking(server.server_id, target, limits)
        return config.options[server.server_id].selected(listing)

    return list_server


@contextmanager
def _running(jobs: Sequence[Callable[[], ServerCost]]) -> Generator[list[Future[ServerCost]]]:
    """Start the jobs; at the end, also after an interrupt, no server runs."""
    pool = ThreadPoolExecutor(os.cpu_count())
    futures = [pool.submit(job) for job in jobs]
    try:
        yield futures
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):
            interrupt_fetches()  # repeatedly: a job may be about to begin its fetch
            time.sleep(_INTERRUPT_EVERY_S)


def _cost(
    list_server: Callable[[ServerAnnouncement], Listing], encoding: Encoding, server: ServerAnnouncement
) -> ServerCost:
    try:
        listing = list_server(server)
    except ServerError as error:
        return ServerCost(server.server_id, None, error.reason)
    cost = cost_of(server.server_id, listing.tools, encoding)
    return ServerCost(server.server_id, cost, _problem_of(listing, cost.uncounted))


def _problem_of(listing: Listing, uncounted: int) -> str | None:
    parts: list[str] = []
    if listing.rejected:
        first, others = listing.rejected[0], ", and others" if len(listing.rejected) > 1 else ""
        parts.append(f"rejected {quoted_name(first.name)}{others}: {first.reason}")
    if listing.marked:
        parts.append(f"{len(listing.marked)} tools with invisible characters")
    if uncounted:
        parts.append(f"{uncounted} tools could not be counted")
    return "; ".join(parts) or None


@dataclass(frozen=True, slots=True)
class CostReport:
    """The cost of each server of some files, and of Toolscale itself."""

    encoding: Encoding
    files: tuple[Path, ...]
    servers: Sequence[ServerCost]
    own: Cost

    @property
    def total(self) -> Cost:
        """Return the cost of all listed servers."""
        return total_of(server.cost for server in self.servers if server.cost)

    @property
    def counts(self) -> dict[str, int]:
        """Return how many servers were tried, listed, and neither."""
        tried, listed = sum(each.is_tried for each in self.servers), sum(bool(each.cost) for each in self.servers)
        return {"tried": tried, "listed": listed, "failed": tried - listed}

    @property
    def is_of_any(self) -> bool:
        """Return whether a server could be listed."""
        return any(server.cost for server in self.servers)


def as_object(report: CostReport) -> dict[str, Any]:
    """Return the report as JSON; a server that could not be listed has null tools and tokens."""
    unlisted = {"tools": None, "tokens": None, "uncounted": None}
    servers = [
        {"server_id": each.server_id, **(asdict(each.cost) if each.cost else unlisted), "problem": each.problem}
        for each in report.servers
    ]
    return {
        "encoding": report.encoding,
        "estimated": is_estimate(report.encoding),
        "files": [str(file) for file in report.files],
        **report.counts,
        "servers": servers,
        "total": asdict(report.total),
        "toolscale": asdict(report.own),
    }


def print_report(report: CostReport) -> None:
    """Print the costs with the comparison, and the problems; each only if there is any."""
    if report.is_of_any:
        listed = [(server.server_id, server.cost) for server in report.servers if server.cost]
        rows = [(printable(name), *_figures(cost)) for name, cost in listed]
        print_table(number_columns("server", "tools", *COLUMNS), rows, total=("total", *_figures(report.total)))
        out.print(f"\n{comparison(report)}")
    problems = [server for server in report.servers if server.problem]
    counts = report.counts
    out.print(f"{counts['tried']} tried: {counts['listed']} listed, {counts['failed']} failed.")
    if problems and report.is_of_any:
        out.print()
    for server in problems:
        listed_as = "" if server.cost else "not listed: "
        out.print(f"{printable(server.server_id)}: {listed_as}{printable(server.problem or '')}")


def comparison(report: CostReport) -> str:
    """Return the cost of Toolscale's own tools beside the total, as a sentence."""
    own, total = report.own.tokens[PROFILE], report.total.tokens[PROFILE]
    unit = f"{report.encoding}, an estimate" if is_estimate(report.encoding) else report.encoding
    share = f", {percent(abs(1 - own / total))} {'less' if own <= total else 'more'}" if total else ""
    return (
        f"Toolscale in their place lists {report.own.tools} tools: {own:,} tokens against {total:,}{share} "
        f"({PROFILE} profile, {unit}); each search adds its answer, and the list a digest of at most 150."
    )


def _figures(cost: Cost) -> list[str]:
    return [thousands(number) for number in (cost.tools, *(cost.tokens[column] for column in COLUMNS))]
