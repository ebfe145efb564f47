"""The composition as the real Docker Compose reads it: anchors, defaults and `.env` resolved."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from redis.retry import Retry

from query.service import RESPONSE_S, grace_s_of
from shared.settings import Settings
from shared.upstream.processes import INSTALLER_GRACE_S
from tests.support.ports import free_port
from tests.support.redis_server import redis_process, wait_until_up
from tests.support.reference.settings import variable
from workers.celery_app import SHUTDOWN_GRACE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
# The services that connect to MCP servers.
CONNECTED = {"worker", "notifications", "query"}
OURS = CONNECTED | {"beat", "watch-docker", "watch-kubernetes", "events-api", "flower"}
STORES = {"redis", "qdrant"}
MONITORING = {"prometheus", "grafana"}
# Read by Flower, and by the clients of Docker, Kubernetes, traces and HTTP.
FOREIGN = {
    "FLOWER_BASIC_AUTH",
    "DOCKER_HOST",
    "KUBECONFIG",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "NO_PROXY",
    "no_proxy",
    "HOME",
    "TOOLSCALE_URL",  # of the command line
}

Composition = dict[str, Any]


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The words that start Compose 2.24 or later; the test is skipped where it is not installed."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version", "--short"], capture_output=True, text=True, check=False)
            version = re.match(r"v?(\d+)\.(\d+)", asked.stdout)
            if version and (int(version[1]), int(version[2])) >= (2, 24):
                return command
    pytest.skip("Docker Compose 2.24 or later is not installed")


@pytest.fixture(scope="module")
def composition(compose: list[str], tmp_path_factory: pytest.TempPathFactory) -> Composition:
    """The composition of an operator without a `.env`."""
    return resolved(compose, tmp_path_factory.mktemp("composition"), {})


def resolved(compose: list[str], directory: Path, variables: dict[str, str]) -> Composition:
    """Return the composition with all profiles, as Compose reads it in this directory with these lines in `.env`."""
    shutil.copy(ROOT / "docker-compose.yml", directory)
    (directory / ".env").write_text("".join(f"{key}={value}\n" for key, value in variables.items()), encoding="utf-8")
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "DOCKER_CONFIG") if key in os.environ}

    done = subprocess.run(
        [*compose, "--profile", "*", "config", "--format", "json"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    # a variable without a default
    assert "is not set" not in done.stderr
    found: Composition = json.loads(done.stdout)
    return found


def test_compose_accepts_the_file_with_every_profile(composition: Composition) -> None:
    assert composition["services"].keys() == OURS | STORES | MONITORING


def test_ports_are_published_on_loopback_only(composition: Composition) -> None:
    published = [port for service in composition["services"].values() for port in service.get("ports", [])]

    assert published
    assert {port.get("host_ip") for port in published} == {"127.0.0.1"}


def test_only_services_of_toolscale_reach_the_stores(composition: Composition) -> None:
    services = composition["services"]

    assert composition["networks"]["backend"].get("internal") is True
    assert [set(services[name]["networks"]) for name in STORES] == [{"backend"}, {"backend"}]
    assert {name for name, service in services.items() if "backend" in service["networks"]} == OURS | STORES


def test_secrets_reach_only_the_services_that_use_them(compose: list[str], tmp_path: Path) -> None:
    users = {
        "REDIS_PASSWORD": OURS | {"redis"},
        "QDRANT_API_KEY": CONNECTED | {"qdrant"},
        "TOOLSCALE_CREDENTIAL_EXAMPLE": CONNECTED,
        "CREDENTIALS_DIR": CONNECTED,
        "TOOLSCALE_EVENTS_TOKEN": {"events-api"},
        "FLOWER_BASIC_AUTH": {"flower"},
    }

    services = resolved(compose, tmp_path, {name: f"/the-secret/{name}" for name in users})["services"]

    given = {
        secret: {name for name, service in services.items() if f"/the-secret/{secret}" in json.dumps(service)}
        for secret in users
    }
    assert given == users


def test_every_variable_is_a_setting_or_is_known_to_another_program(composition: Composition) -> None:
    given = {name for service in OURS for name in composition["services"][service]["environment"]}
    replaced = re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    documented = re.findall(r"^# (\w+)=", (ROOT / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)

    assert given - {variable(field) for field in Settings.model_fields} == FOREIGN
    assert set(replaced) <= set(documented)


def test_every_service_has_a_health_check_limits_and_no_privileges(composition: Composition) -> None:
    for name, service in composition["services"].items():
        assert service["healthcheck"]["test"], name
        assert service["deploy"]["resources"]["limits"].keys() == {"cpus", "memory", "pids"}, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("read_only") is True, name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert all(mount.get("read_only") for mount in service.get("volumes", []) if mount["type"] == "bind"), name
        # an engine refuses a limit above its own hard one; the processes of Toolscale raise their soft limit
        assert name not in OURS or "ulimits" not in service, name
        # Docker's init would keep all secrets in an environment that stdio servers can read
        assert "init" not in service, name


def test_one_service_builds_the_image_of_all_and_none_pulls_it(composition: Composition) -> None:
    services = composition["services"]

    # concurrent builds of a tag fail on a machine without it
    assert [name for name, service in services.items() if "build" in service] == ["worker"]
    assert {services[name]["image"] for name in OURS} == {services["worker"]["image"]}
    assert {services[name].get("pull_policy") for name in OURS} == {"never"}


# The registry has no image whose name has no tag, or another character than those of a name.
DOCKER_THAT_INSPECTS = """#!/bin/sh
[ "$1 $2 $3" = "buildx imagetools inspect" ] || exit 1
echo "$6" | grep -qxE '[a-z0-9/._-]+:[A-Za-z0-9_][A-Za-z0-9._-]*' && printf 'sha256:%064d' 0
"""


def test_the_lines_of_pin_images_replace_every_image_by_its_digest(
    compose: list[str], composition: Composition, tmp_path: Path
) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER_THAT_INSPECTS, encoding="utf-8")
    docker.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.defpath}"}

    printed = subprocess.run([ROOT / "deploy/pin-images"], env=environment, capture_output=True, text=True, check=True)
    services = resolved(compose, tmp_path, dict(line.split("=") for line in printed.stdout.splitlines()))["services"]

    digest = "@sha256:" + "0" * 64
    others = STORES | MONITORING
    assert {services[name]["image"] for name in others} == {
        composition["services"][name]["image"] + digest for name in others
    }
    assert services["worker"]["build"]["args"]["PYTHON_IMAGE"].endswith(digest)


def test_a_stopping_worker_has_the_time_of_its_listings(composition: Composition) -> None:
    assert grace_period_s(composition, "worker") >= SHUTDOWN_GRACE_S + 10


@pytest.mark.parametrize("timeout_s", [None, 7.5, 600.0])
def test_a_stopping_query_service_has_the_time_of_its_longest_call(
    compose: list[str], tmp_path: Path, timeout_s: float | None
) -> None:
    given = {} if timeout_s is None else {"TOOLSCALE_CALL_TIMEOUT_S": str(timeout_s)}
    settings = Settings() if timeout_s is None else Settings(call_timeout_s=timeout_s)

    # 3: the exit of a stdio server before SIGTERM and after SIGKILL
    needed_s = grace_s_of(settings) + RESPONSE_S + INSTALLER_GRACE_S + 3
    assert grace_period_s(resolved(compose, tmp_path, given), "query") >= needed_s


def grace_period_s(composition: Composition, name: str) -> float:
    """Return the seconds between SIGTERM and SIGKILL."""
    period = re.fullmatch(r"(?:(\d+)m)?([\d.]+)s", composition["services"][name]["stop_grace_period"])
    assert period is not None
    return 60 * int(period[1] or 0) + float(period[2])


@pytest.mark.redis
def test_redis_started_by_its_command_requires_the_password_and_keeps_all_data(
    compose: list[str], tmp_path: Path
) -> None:
    service = resolved(compose, tmp_path, {"REDIS_PASSWORD": "of-redis"})["services"]["redis"]
    port = free_port()

    with (
        redis_process(tmp_path, *service["command"][1:], port=port, bind="127.0.0.1"),
        Redis(port=port, password="of-redis", decode_responses=True) as redis,
        Redis(port=port, retry=Retry(NoBackoff(), 0)) as stranger,
    ):
        wait_until_up(f"redis://:of-redis@127.0.0.1:{port}")
        with pytest.raises(AuthenticationError):
            stranger.ping()
        config = cast("dict[str, str]", redis.config_get("append*", "maxmemory*"))

    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    # a fork that rewrites the file copies each page that changes meanwhile
    assert int(service["deploy"]["resources"]["limits"]["memory"]) >= 2 * int(config["maxmemory"])
