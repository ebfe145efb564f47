"""The configuration of the workers' Celery app.

The workers rely on intents, not on delivery (see `shared/intents`). These settings make lost messages rare and
redelivery quick; the sweep repairs the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import Celery

from shared.errors import ConfigInvalid
from shared.service.redis import parse_redis_url
from shared.settings import Settings
from workers.dependencies import LazyDependencies
from workers.monitoring.queue import QUEUE
from workers.monitoring.server import STUCK_AFTER_S
from workers.signals import IgnoresHangup, WorkerSignals
from workers.tasks import SWEEP_INTENTS, TICK_EXPIRES_S, register_tasks, send_reconcile, waiting
from workers.work import Work

# Time of a reconciliation after the listing, to count and embed the tools of a large server. Celery enforces it in
# processes (`--pool processes`); in threads, only the listing has a time limit.
WORK_LIMIT_S = 240
HARD_LIMIT_AFTER_S = 15

# A dead worker's message returns after the longest reconciliation and this time, checked at this interval.
VISIBLE_AFTER_S = 30
RESTORE_INTERVAL_S = 5


def build_app(settings: Settings, *, stuck_after_s: float = STUCK_AFTER_S) -> Celery:
    """Return the app for these settings; a worker whose tasks stand still for so long asks for a restart.

    Raises:
        ConfigInvalid: REDIS_URL is not set.
    """
    if settings.redis_url is None:
        raise ConfigInvalid("REDIS_URL is not set; workers and their messages need it, `toolscale serve` does not")
    broker_url, transport = parse_redis_url(settings.redis_url).broker()
    app = Celery("toolscale", broker=broker_url)
    lazy = LazyDependencies(settings)
    app.conf.update(_delivery_options(settings, transport), **_schedule(settings), **_worker_options(settings))
    work = Work(
        *(lazy.intents, lazy.dependencies, partial(send_reconcile, app), partial(waiting, app)),
        message_time_s=settings.redeliver_after_s,
        sweep_interval_s=settings.sweep_interval_s,
    )
    register_tasks(app, work)
    app.steps["worker"].add(IgnoresHangup)
    WorkerSignals(app, settings, lazy, stuck_after_s).connect()
    return app


def _delivery_options(settings: Settings, transport: dict[str, Any]) -> dict[str, Any]:
    """Return the options of delivery, with those of the transport that belong to the broker's URL."""
    transport = transport | {
        "visibility_timeout": _task_limit_s(settings) + HARD_LIMIT_AFTER_S + VISIBLE_AFTER_S,
        # kombu restores messages of a dead worker every 100 s by default
        "unacked_restore_interval": RESTORE_INTERVAL_S,
        "unacked_restore_throttle": 1,
        "socket_timeout": 5,
        "socket_connect_timeout": 3,
        "health_check_interval": 10,
    }
    return {
        # the task of a dead worker is delivered again, until its server is parked
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,  # a worker reserves no tasks beyond its threads
        "broker_transport_options": transport,
        "broker_connection_retry_on_startup": True,
        "task_soft_time_limit": _task_limit_s(settings),
        "task_time_limit": _task_limit_s(settings) + HARD_LIMIT_AFTER_S,
    }


def _task_limit_s(settings: Settings) -> float:
    return settings.longest_listing_s + WORK_LIMIT_S


def _schedule(settings: Settings) -> dict[str, Any]:
    return {
        "beat_schedule": {
            "sweep": {
                "task": SWEEP_INTENTS,
                "schedule": settings.sweep_interval_s,
                "options": {"expires": TICK_EXPIRES_S},
            }
        }
    }


def _worker_options(settings: Settings) -> dict[str, Any]:
    return {
        "task_default_queue": QUEUE,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "worker_pool": "threads",  # reconciliations wait for servers; ONNX Runtime and tiktoken release the GIL
        "worker_concurrency": settings.worker_concurrency,
        "worker_soft_shutdown_timeout": settings.shutdown_grace_s,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }
