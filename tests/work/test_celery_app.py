from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog import Listing
from shared.errors import IndexUnavailable
from shared.index.versions import IndexVersions
from shared.intents.intent import Intent
from shared.service.logging import configure_logging
from shared.settings import load_settings
from tests.support.builders import up, write_path
from workers.celery_app import RECONCILE_SERVER, build_app, register_tasks, send_reconcile, waiting
from workers.dependencies import Dependencies
from workers.work import Work

REDIS = "redis://127.0.0.1:1/0"


def test_a_message_is_kept_until_its_task_ended_and_comes_back_soon_after_its_worker_died() -> None:
    conf = build_app(load_settings(redis_url=REDIS)).conf

    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    transport = conf.broker_transport_options
    assert (transport["unacked_restore_interval"], transport["unacked_restore_throttle"]) == (5, 1)


def test_tasks_are_json_and_leave_no_results() -> None:
    conf = build_app(load_settings(redis_url=REDIS)).conf

    assert (conf.task_serializer, conf.accept_content, conf.task_ignore_result) == ("json", ["json"], True)


@given(st.floats(min_value=0.001, max_value=600))
def test_a_reconciliation_may_outlast_its_listing_and_ends_before_its_message_is_redelivered(listing_s: float) -> None:
    conf = build_app(load_settings(redis_url=REDIS, listing_timeout_s=listing_s)).conf

    limits = listing_s, conf.task_soft_time_limit, conf.task_time_limit
    assert list(limits) == sorted(set(limits))
    assert conf.task_time_limit < conf.broker_transport_options["visibility_timeout"]


def test_a_tick_of_the_sweep_outlives_clocks_that_differ_by_minutes() -> None:
    sweep = build_app(load_settings(redis_url=REDIS)).conf.beat_schedule["sweep"]

    assert sweep["options"]["expires"] >= 300


def work_of(deps: Dependencies, wake: Callable[[str], None], waiting: Callable[[], int]) -> Work:
    stores = (lambda: deps.intents, lambda: deps)
    return Work(*stores, wake, waiting, message_time_s=5.0, sweep_interval_s=5.0)


def test_a_process_maintains_the_index_once_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deps, parts = replace(write_path(tmp_path).deps, versions=cast("IndexVersions", object())), list[int]()
    work = work_of(deps, lambda _: None, lambda: 0)

    def maintain_during_itself(*_: object) -> None:
        parts.append(len(parts))
        work.maintain()

    monkeypatch.setattr("workers.work.maintain_index", maintain_during_itself)
    work.maintain()
    work.maintain()

    assert parts == [0, 1]


def test_a_store_that_is_away_fills_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def list_server(_: Intent) -> Listing:
        raise IndexUnavailable("the disk is full")

    deps = replace(write_path(tmp_path).deps, list_server=list_server)
    app = Celery("away", broker="memory://localhost/")
    register_tasks(app, work_of(deps, lambda _: None, lambda: 0))
    reconcile = app.tasks[RECONCILE_SERVER]
    configure_logging("INFO")
    for number in range(100):
        deps.intents.record(up(f"s{number}"), due_in_s=0)
        reconcile.apply(args=(f"s{number}",))

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["level"], line["task"]) for line in lines] == [
        ("task_failed", "warning", RECONCILE_SERVER)
    ]


def test_a_sweep_adds_nothing_to_a_full_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_path(tmp_path)
    monkeypatch.setattr("workers.work.QUEUE_LIMIT", 3)
    with Celery("full", broker="memory://localhost/") as app, app.connection_for_write() as connection:
        app.conf.update(task_default_queue="full")
        work = work_of(path.deps, partial(send_reconcile, app), partial(waiting, app))
        queue = connection.SimpleQueue("full")
        sizes: list[int] = []
        for _ in range(3):
            for number in range(2):
                path.deps.intents.record(up(f"s{number}"), due_in_s=0)
            path.clock.ahead_s += 3_600
            work.sweep()
            sizes.append(queue.qsize())

    assert sizes == [2, 4, 4]
