"""A worker with a stopwatch on every collaborator, which counts what passes through them.

As a program, `python -m benchmarks.fleet.watching FILE` works as `celery -A workers.app worker` does, until it is
asked to end; then it writes seconds and items by stage to the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.throughput.stages import Stages, timed_dependencies
from shared.service.logging import configure_logging
from shared.settings import load_settings

if TYPE_CHECKING:
    from benchmarks.fleet.compositions import Site
    from tests.support.processes import Running


@contextmanager
def watched_worker(at: Site) -> Generator[tuple[Running, Stages]]:
    """Run such a worker; what it counted is there once the block has ended."""
    kept = at.composition.directory / "stages.json"
    watched = Stages()
    with at.composition.run("watched", "-m", "benchmarks.fleet.watching", str(kept)) as worker:
        worker.wait_for("ready.", within_s=60)
        yield worker, watched
        worker.stop()
    found = json.loads(kept.read_text(encoding="utf-8"))
    watched.seconds.update(found["seconds"])
    watched.items.update(found["items"])


def main() -> None:
    """Work until asked to end."""
    from celery import signals  # noqa: PLC0415  # only the program works

    from shared.intents.intents import open_intents  # noqa: PLC0415
    from workers import dependencies  # noqa: PLC0415
    from workers.celery_app import build_app  # noqa: PLC0415

    settings, stages = load_settings(), Stages()

    def on_logging(**_: Any) -> None:
        configure_logging(settings.log_level)

    signals.setup_logging.connect(on_logging, weak=False)
    with closing(open_intents(settings)) as intents, closing(dependencies.open_dependencies(settings, intents)) as deps:
        active = deps.active()
        # a reconciliation would open its own index, unwatched
        watched = replace(deps, index=active.index, embedder=active.embedder, versions=None)
        dependencies.open_dependencies = lambda *_: timed_dependencies(watched, stages)  # pyright: ignore[reportUnknownLambdaType]
        app = build_app(settings)
        with suppress(SystemExit):
            app.worker_main(["worker", "--hostname", "watched@localhost"])
    Path(sys.argv[1]).write_text(json.dumps({"seconds": stages.seconds, "items": stages.items}), encoding="utf-8")


if __name__ == "__main__":
    main()
