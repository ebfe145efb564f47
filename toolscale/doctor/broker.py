"""Checks of Redis and of the workers that wait at it; loaded where Redis is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import redis
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from shared.service.redis import NO_CLUSTER, connect, parse_redis_url, redis_problem
from shared.settings import Settings
from toolscale.doctor.installation import Finding, ok, problem, warning

SKEW_S = 2.0
WORKER_ANSWER_S = 2.0
_TRANSPORTS = {
    None: "without TLS",
    "none": "TLS, its certificate not verified",
    "optional": "TLS, its certificate verified if it sends one",
    "required": "TLS, its certificate verified",
}


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Check that Redis answers, persists its data, and has the same time."""
    assert settings.redis_url  # the command checks no broker without one
    address = parse_redis_url(settings.redis_url)
    try:
        with closing(connect(settings.redis_url)) as client:
            transport = _TRANSPORTS[address.verification]
            yield ok("Redis", f"version {client.info('server')['redis_version']}, {transport}")
            if client.info("cluster").get("cluster_enabled"):
                yield problem("Redis", "is a node of a Redis Cluster", NO_CLUSTER)
            if client.info("replication").get("role") == "slave":
                yield problem("Redis", *redis_problem(ReadOnlyError()))
            memory = client.info("memory")
            if 0 < memory.get("maxmemory", 0) <= memory["used_memory"]:
                yield problem("Redis", *redis_problem(OutOfMemoryError()))
            yield from _persistence(client)
            yield _clock(client)
    except redis.RedisError as error:
        found, repair = redis_problem(error)
        yield problem("Redis", f"{address.place}: {found}", repair)


def _persistence(client: redis.Redis) -> Iterator[Finding]:
    wanted = {"appendonly": "yes", "maxmemory-policy": "noeviction"}
    for name, value in wanted.items():
        try:
            found = client.config_get(name).get(name)
        except redis.ResponseError:
            yield warning("Redis", f"does not report its {name}", f"make sure that its provider sets {name} {value}")
            continue
        if found != value:
            yield problem(
                "Redis",
                f"{name} is {found}: recorded events may be lost",
                f"run `redis-cli config set {name} {value}`, and set it in redis.conf too",
            )


def _clock(client: redis.Redis) -> Finding:
    before = time.time()
    seconds, microseconds = client.time()
    skew_s = abs(seconds + microseconds / 1e6 - (before + time.time()) / 2)
    if skew_s > SKEW_S:
        found = f"{skew_s:.1f} s apart from the clock of Redis"
        return warning("clock", found, "synchronise the clocks: the clock of Redis decides when a server is due")
    return ok("clock", "agrees with Redis")


def check_workers(settings: Settings) -> Iterator[Finding]:
    """Check that a worker answers."""
    assert settings.redis_url
    from kombu.exceptions import OperationalError  # noqa: PLC0415  # loads Celery

    from workers.celery_app import build_app  # noqa: PLC0415

    try:
        with closing(connect(settings.redis_url)) as client:
            client.ping()  # Celery would retry forever
        answered = build_app(settings).control.ping(timeout=WORKER_ANSWER_S)
    except (OperationalError, redis.RedisError):
        return  # check_redis reports this error
    if answered:
        yield ok("workers", f"{len(answered)} answered")
    else:
        advice = "start one: celery -A workers.app worker"
        yield problem("workers", f"none answered within {WORKER_ANSWER_S:g} s", advice)
