"""A listing of each server, as many at a time as there are cores, and the cost of its tools."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shared.catalog import Listing
from shared.errors import ServerError
from shared.quoting import quoted_name
from shared.upstream.dial import dialler_for
from shared.upstream.target import STDIO_START_TIMEOUT_S, Target
from toolscale.costs.counting import Cost, cost_of
from workers.fetch.definitions import Limits
from workers.fetch.session import fetch_tools_blocking
from workers.fetch.turns import interrupt_fetches

if TYPE_CHECKING:
    from shared.catalog import Encoding
    from shared.events import ServerAnnouncement
    from shared.settings import Settings
    from toolscale.costs.servers import FoundServers

_INTERRUPT_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class ServerCost:
    """The cost of a server's tools; None: it could not be listed. `problem` is the reason for missing tools."""

    server_id: str
    cost: Cost | None
    problem: str | None = None


def server_costs(
    found: FoundServers, settings: Settings, encoding: Encoding, on_progress: Callable[[int], None]
) -> list[ServerCost]:
    """List all servers and return their costs, the costliest first; `on_progress` gets the number of listed servers."""
    list_one = partial(_cost, lister(found.config.targets, settings), encoding)
    with _running([partial(list_one, server) for server in found.config.announcements]) as futures:
        for done, _ in enumerate(as_completed(futures), start=1):
            on_progress(done)
        costs = [future.result() for future in futures]
    return sorted([*costs, *(ServerCost(name, None, reason) for name, reason in found.unusable)], key=_order)


def lister(targets: Mapping[str, Target], settings: Settings) -> Callable[[ServerAnnouncement], Listing]:
    """Return the function that lists one of these servers; it raises a ServerError if the server cannot be listed."""
    dialler = dialler_for(settings, os.environ, targets, keeps_logs=False)
    limits = Limits(timeout_s=settings.listing_timeout_s, start_timeout_s=STDIO_START_TIMEOUT_S)

    def list_server(server: ServerAnnouncement) -> Listing:
        target = dialler.target(server.server_id, server.endpoint)
        return fetch_tools_blocking(server.server_id, target, limits)

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
    return ServerCost(server.server_id, cost, _problem(listing, cost.uncounted))


def _problem(listing: Listing, uncounted: int) -> str | None:
    parts: list[str] = []
    if listing.rejected:
        first, others = listing.rejected[0], ", and others" if len(listing.rejected) > 1 else ""
        parts.append(f"rejected {quoted_name(first.name)}{others}: {first.reason}")
    if listing.marked:
        parts.append(f"{len(listing.marked)} tools with invisible characters")
    if uncounted:
        parts.append(f"{uncounted} tools could not be counted")
    return "; ".join(parts) or None


def _order(server: ServerCost) -> tuple[float, str]:
    return (-server.cost.tokens["generic"] if server.cost else 1, server.server_id)
