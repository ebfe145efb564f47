"""Every form of REDIS_URL with a real Redis, for our clients and for Celery's."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
from kombu.exceptions import OperationalError

from shared.errors import IntentsUnavailable
from shared.intents.intents import Intents
from shared.intents.redis import RedisStorage
from shared.intents.transitions import RetryPolicy
from shared.service.redis import connect, parse_redis_url
from shared.settings import load_settings
from tests.support.builders import up
from tests.support.certificates import write_certificate
from tests.support.hostile.messages import one_page, tool
from tests.support.hostile.scripted_http import scripted_http
from tests.support.ports import free_port
from tests.support.processes import Composition
from tests.support.redis_server import redis_process, redis_server, wait_until_up
from tests.support.waiting import eventually
from toolscale.doctor.broker import check_redis
from workers.celery_app import build_app

pytestmark = [pytest.mark.process, pytest.mark.redis]


def ping_both(url: str) -> None:
    """Send a command by our client and by Celery's.

    Raises:
        redis.ConnectionError: ours has no connection.
        OperationalError: Celery's has none.
    """
    settings = load_settings(redis_url=url, qdrant_url="http://127.0.0.1:1")
    with closing(connect(url)) as client:
        client.ping()
    with build_app(settings) as app, app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, Path]]:
    """Return the URL of a Redis with TLS, and its certificate, which this machine does not trust."""
    directory, port = tmp_path_factory.mktemp("tls"), free_port()
    certificate, key = write_certificate(directory)
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
    with redis_process(directory, port=0, tls_port=port, bind="127.0.0.1", tls_auth_clients="no", **files):
        url = f"rediss://127.0.0.1:{port}/0"
        wait_until_up(f"{url}?ssl_cert_reqs=none")
        yield url, certificate


def test_a_certificate_that_cannot_be_verified_is_refused_by_both_clients(tls: tuple[str, Path]) -> None:
    url, _ = tls

    with closing(connect(url)) as client, pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        client.ping()
    app = build_app(load_settings(redis_url=url, qdrant_url="http://127.0.0.1:1"))
    with (
        app,
        app.connection_for_write() as connection,
        pytest.raises(OperationalError, match="certificate verify failed"),
    ):
        connection.ensure_connection(max_retries=1, interval_start=0)


@pytest.mark.parametrize("requirements", ["none", "CERT_NONE"])
def test_verification_ends_only_where_the_url_asks_for_it(tls: tuple[str, Path], requirements: str) -> None:
    ping_both(f"{tls[0]}?ssl_cert_reqs={requirements}")


def test_a_certificate_of_a_named_authority_is_verified_and_doctor_names_the_check(tls: tuple[str, Path]) -> None:
    url = f"{tls[0]}?ssl_ca_certs={tls[1]}"

    ping_both(url)

    found = next(check_redis(load_settings(redis_url=url)))
    assert found.found.endswith("TLS, its certificate verified")


def test_an_authority_of_the_environment_is_trusted(tls: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tls[1]))

    ping_both(tls[0])


def test_a_socket_serves_both_clients(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with redis_process(tmp_path, port=0, unixsocket=socket):
        eventually(socket.exists)

        ping_both(f"unix://{socket}?db=2")


def test_a_node_of_a_cluster_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with redis_server(tmp_path, cluster_enabled="yes", cluster_config_file="nodes.conf") as url:
        with (
            closing(Intents(RedisStorage(connect(url)), RetryPolicy(1.0, 4.0))) as intents,
            pytest.raises(IntentsUnavailable) as caught,
        ):
            list(intents.intents())

        findings = [finding for finding in check_redis(load_settings(redis_url=url)) if finding.level == "problem"]

    assert "Cluster" in str(caught.value)
    assert any("Cluster" in finding.found for finding in findings)


class Sentinels:
    """A master with a replica and one Sentinel, which promotes the replica when the master is dead."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        ports = [free_port() for _ in range(3)]
        self.master = self._start(stack, directory / "master", ports[0])
        self._start(stack, directory / "replica", ports[1], replicaof=f"127.0.0.1 {ports[0]}")
        config = directory / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {ports[0]} 1\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 4000\n"
        )
        stack.enter_context(redis_process(directory, str(config), "--sentinel", port=ports[2], bind="127.0.0.1"))
        self.url = f"redis+sentinel://127.0.0.1:{ports[2]}/main/0"
        eventually(lambda: _has_replica(ports[0]), what="the replica")
        eventually(lambda: _knows_replica(ports[2]), what="the Sentinel's replica")

    @staticmethod
    def _start(stack: ExitStack, directory: Path, port: int, **settings: object) -> subprocess.Popen[bytes]:
        directory.mkdir()
        process = stack.enter_context(
            redis_process(directory, port=port, bind="127.0.0.1", appendonly="yes", **settings)
        )
        wait_until_up(f"redis://127.0.0.1:{port}/0")
        return process


def _has_replica(port: int) -> bool:
    with redis.Redis(port=port) as client:
        return bool(client.info("replication")["connected_slaves"] == 1 and client.wait(1, 1000) == 1)


def _knows_replica(port: int) -> bool:
    with redis.Redis(port=port, decode_responses=True) as client:
        try:
            replicas = cast("list[Any]", client.execute_command("SENTINEL", "replicas", "main"))
            return len(replicas) == 1
        except redis.RedisError:
            return False


@pytest.mark.slow
def test_the_catalogue_is_true_after_sentinel_has_replaced_a_killed_master(tmp_path: Path) -> None:
    with ExitStack() as stack:
        sentinels = Sentinels(tmp_path, stack)
        server = stack.enter_context(scripted_http(lambda exchange: exchange.play(one_page(tool("read_file")))))
        composition = Composition(sentinels.url, tmp_path / "data", {})
        composition.directory.mkdir()
        intents = stack.enter_context(closing(Intents(RedisStorage(connect(sentinels.url)), RetryPolicy(1.0, 4.0))))
        stack.enter_context(composition.beat())
        worker = stack.enter_context(composition.worker())
        _announce(intents, "before", server.url)
        eventually(partial(_is_committed, intents, "before"), what=worker.output())

        sentinels.master.kill()
        names = [f"during-{number}" for number in range(10)]
        for name in names:
            eventually(partial(_announce, intents, name, server.url), what="the new master")

        for name in ("before", *names):
            eventually(partial(_is_committed, intents, name), what=f"{name}: {worker.output()}")
        assert worker.stop() == 0


def _announce(intents: Intents, name: str, url: str) -> bool:
    try:
        intents.record(up(name, url=url), due_in_s=0.0)
    except IntentsUnavailable:
        return False
    return True


def _is_committed(intents: Intents, name: str) -> bool:
    try:
        found = intents.intent(name)
    except IntentsUnavailable:
        return False
    return found is not None and found.committed > 0 and not found.is_lagging


def test_addresses_for_people_have_no_credentials() -> None:
    urls = ["rediss://u:secret@h:1/0", "redis+sentinel://u:secret@a:1,b/main", "redis://:secret@h/0"]

    assert [parse_redis_url(url).place for url in urls] == ["h:1", "main of the Sentinels a:1, b:26379", "h"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://h:1", "Cluster is not supported"),
        ("rediss://h?ssl_cert_reqs=maybe", "required, optional or none"),
        ("redis+sentinel://h:1", "/master/db"),
        ("redis+sentinel://h:1/main/0?ssl_cert_reqs=required", "takes no options"),
        ("unix:///run/redis.sock?password=x", "a socket has no password"),
        ("unix://:x@/run/redis.sock", "a socket has no password"),
        ("http://h", "begins with redis://"),
    ],
)
def test_other_forms_are_refused(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_redis_url(url)
