"""What answers in the place of a store is named with its setting and the cure, by every program that starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.errors import ConfigInvalid, IndexUnavailable, IntentsUnavailable
from shared.index import open_store
from shared.intents.intents import open_intents
from shared.service.redis import check_redis
from shared.settings import load_settings
from tests.support.builders import up
from tests.support.hostile.scripted_http import Exchange, scripted_http
from tests.support.ports import free_port
from tests.support.redis_server import redis_server
from toolscale.commands.doctor import findings
from toolscale.doctor.broker import check_redis as check_redis_of_doctor
from workers.monitoring.checks import warn_if_index_unreachable

pytestmark = pytest.mark.process

CANARY = "cAnArY7c1e55"
HTML = f"<html>\n<title>{CANARY}</title>\n</html>".encode()
WEB: dict[str, Callable[[Exchange], None]] = {
    "a page": lambda exchange: exchange.send(200, HTML, "text/html"),
    "a page without a type": lambda exchange: exchange.send(200, HTML),
    "a page of a gateway": lambda exchange: exchange.send(502, HTML, "text/html"),
    "a sign-in": lambda exchange: exchange.send(302, HTML, "text/html", location=f"https://h/?{CANARY}"),
    "a missing prefix": lambda exchange: exchange.send(404, HTML, "text/html"),
    "another prefix": lambda exchange: exchange.send(404, b'{"detail": "Not Found"}'),
    "other JSON": lambda exchange: exchange.send(200, b'{"result": {"ok": true}, "version": "1"}'),
    "a list": lambda exchange: exchange.send(200, b"[]"),
    "null": lambda exchange: exchange.send(200, b"null"),
    "bytes": lambda exchange: exchange.send(200, b"\xff\xfe\x00"),
    "nothing": lambda exchange: exchange.send(200),
    "too many requests": lambda exchange: exchange.send(429, b"slow down", "text/plain"),
}


@pytest.mark.parametrize("respond", WEB.values(), ids=WEB)
def test_what_is_not_qdrant_is_named_with_its_setting(respond: Callable[[Exchange], None], tmp_path: Path) -> None:
    with scripted_http(respond) as server:
        settings = load_settings(qdrant_url=server.url.removesuffix("/mcp"), data_dir=tmp_path)

        with pytest.raises(IndexUnavailable, match="QDRANT_URL") as refused:
            open_store(settings)

        warn_if_index_unreachable(settings).join(30)  # no traceback in the thread
    assert CANARY not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("body", [HTML, b'{"status": {"error": "Forbidden"}}', b""])
def test_a_refused_key_is_named(status: int, body: bytes, tmp_path: Path) -> None:
    with scripted_http(lambda exchange: exchange.send(status, body)) as server:
        settings = load_settings(qdrant_url=server.url.removesuffix("/mcp"), qdrant_api_key=CANARY, data_dir=tmp_path)

        with pytest.raises(ConfigInvalid, match="QDRANT_API_KEY") as refused:
            open_store(settings)

    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("url", ["https://127.0.0.1:{}", "http://127.0.0.1:1", "http://nowhere.invalid:1"])
def test_a_qdrant_that_cannot_be_reached_is_named(url: str, tmp_path: Path) -> None:
    with (
        scripted_http(lambda exchange: exchange.send(200)) as server,
        pytest.raises(IndexUnavailable, match="QDRANT_URL"),
    ):
        open_store(load_settings(qdrant_url=url.format(server.url.split(":")[2].split("/")[0]), data_dir=tmp_path))


@contextmanager
def answering(reply: bytes) -> Generator[int]:
    """Yield the port of a server that answers each command with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer(client: socket.socket) -> None:
            with client:
                while commands := client.recv(65_536):
                    client.sendall(reply * commands.count(b"*"))

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


REPLIES = {
    "NOAUTH": (b"-NOAUTH Authentication required.\r\n", True),
    "WRONGPASS": (b"-WRONGPASS invalid username-password pair\r\n", True),
    "NOPERM": (b"-NOPERM User x has no permissions to run the 'set' command\r\n", True),
    "READONLY": (b"-READONLY You can't write against a read only replica.\r\n", True),
    "MOVED": (b"-MOVED 3999 127.0.0.1:6381\r\n", True),
    "CLUSTERDOWN": (b"-CLUSTERDOWN Hash slot not served\r\n", True),
    "CROSSSLOT": (b"-CROSSSLOT Keys in request don't hash to the same slot\r\n", True),
    "LOADING": (b"-LOADING Redis is loading the dataset in memory\r\n", False),
    "OOM": (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", False),
    "MASTERDOWN": (b"-MASTERDOWN Link with MASTER is down\r\n", None),
    "MISCONF": (b"-MISCONF Redis is configured to save RDB snapshots, but it cannot\r\n", True),
    "a database": (b"-ERR DB index is out of range\r\n", True),
    "bytes": (b"\x00\xff\xfe\r\n", True),
    "a page": (b"HTTP/1.1 400 Bad Request\r\n\r\n<html>", True),
    "a mail server": (b"220 mail ESMTP\r\n", True),
}


@pytest.mark.parametrize("name", REPLIES)
def test_what_a_redis_refuses_is_named_with_its_setting(name: str) -> None:
    reply, ends_start = REPLIES[name]
    with answering(reply) as port:
        url = f"redis://:{CANARY}@127.0.0.1:{port}/3" if name == "WRONGPASS" else f"redis://127.0.0.1:{port}/3"

        with pytest.raises(IntentsUnavailable, match="REDIS_URL") as refused:
            open_intents(load_settings(redis_url=url)).record(up("s"), due_in_s=0)

        found = findings_of(url)
        if ends_start is not None:
            assert is_refused(url) == ends_start
    assert CANARY not in str(refused.value)
    assert any(about == "Redis" and repair for about, repair in found)


def is_refused(url: str) -> bool:
    """Return whether a worker ends at its start."""
    try:
        check_redis(url)
    except ConfigInvalid as error:
        return "REDIS_URL" in str(error)
    return False


def findings_of(url: str) -> list[tuple[str, str]]:
    """Return the subject and the advice of each problem that `doctor` finds at this Redis."""
    found = check_redis_of_doctor(load_settings(redis_url=url))
    return [(each.about, each.advice) for each in found if each.level == "problem"]


def replica(stack: ExitStack, directory: Path) -> str:
    """Return the URL of a Redis that takes no writes."""
    master = stack.enter_context(redis_server(directory / "master"))
    port = master.split(":")[2].split("/")[0]
    return stack.enter_context(redis_server(directory / "replica", replicaof=f"127.0.0.1 {port}"))


def full(stack: ExitStack, directory: Path) -> str:
    """Return the URL of a Redis without memory."""
    return stack.enter_context(redis_server(directory / "master", maxmemory="500kb"))


def limited(stack: ExitStack, directory: Path) -> str:
    """Return the URL of a Redis with a user who may read some keys alone."""
    url = stack.enter_context(redis_server(directory / "master"))
    with redis.Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", f">{CANARY}", "+ping", "+info", "~x*")
    return url.replace("//", f"//ann:{CANARY}@")


def clustered(stack: ExitStack, directory: Path) -> str:
    """Return the URL of a node of a cluster."""
    return stack.enter_context(
        redis_server(directory / "master", cluster_enabled="yes", cluster_config_file="nodes.conf")
    )


def numbered(stack: ExitStack, directory: Path) -> str:
    """Return the URL of a database that a Redis has not."""
    return stack.enter_context(redis_server(directory / "master")).removesuffix("0") + "99"


@pytest.mark.redis
@pytest.mark.parametrize("started", [replica, full, limited, clustered, numbered])
def test_a_redis_that_takes_no_writes_is_a_finding_and_ends_a_worker(
    started: Callable[[ExitStack, Path], str], tmp_path: Path
) -> None:
    for name in ("master", "replica"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        url = started(stack, tmp_path)

        found = findings_of(url)
        worker = (
            program(tmp_path, "celery", "-A", "workers.app", "worker", REDIS_URL=url) if started is not full else ""
        )

    assert any(about == "Redis" and repair for about, repair in found)
    assert started is full or "error: Redis at REDIS_URL" in worker
    assert CANARY not in worker
    assert "Traceback" not in worker


def program(directory: Path, *command: str, **environment: str) -> str:
    """Return what a program prints that ends by itself."""
    ended = subprocess.run(
        [sys.executable, "-m", *command],
        env={**os.environ, "TOOLSCALE_DATA_DIR": str(directory), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode in (1, 2)
    return ended.stdout + ended.stderr


COMMANDS: dict[str, tuple[str, ...]] = {
    "query": ("query",),
    "serve": ("toolscale", "serve", "--port", "0"),
    "doctor": ("toolscale", "doctor"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("name", ["a page", "other JSON"])
def test_a_program_names_the_setting_of_what_is_not_qdrant(name: str, command: Any, tmp_path: Path) -> None:
    with scripted_http(WEB[name]) as server:
        shown = program(tmp_path, *command, QDRANT_URL=server.url.removesuffix("/mcp"))

    assert "QDRANT_URL" in shown
    assert CANARY not in shown
    assert "Traceback" not in shown


def test_doctor_reports_a_check_that_fails_and_continues(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def check_index(_: object) -> None:
        raise LookupError(CANARY)

    monkeypatch.setattr("toolscale.doctor.stores.check_index", check_index)
    monkeypatch.setenv("TOOLSCALE_DATA_DIR", str(tmp_path))

    found = {finding.about: finding for finding in findings(None, audit=False)}

    assert found["index"].level == "problem"
    assert not any(CANARY in finding.found for finding in found.values())
    assert "vocabularies" in found


def test_a_redis_that_starts_later_is_waited_for() -> None:
    check_redis(f"redis://127.0.0.1:{free_port()}/0")
