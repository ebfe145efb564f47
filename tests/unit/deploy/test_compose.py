"""The scaled composition, checked without Docker: its schema, its promises, and the commands it can run here."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as RedisConnectionError
from typer.testing import CliRunner

from query.auth.tokens import read_tokens
from query.server.shutdown import RESPONSE_S, grace_s_of
from shared.settings import Settings
from shared.upstream.mcp_json import read_config
from shared.upstream.transport.stdio import INSTALLER_GRACE_S
from tests.support.composed import COMPOSE, OURS, ROOT, SERVICES, filled_in, grace_period_s, path
from tests.support.http_thread import SilentHandler, served
from toolscale.app import app
from workers.notifications.open_files import MAX_CONNECTIONS

DOCKERFILE = ROOT / "deploy" / "Dockerfile"

# Read by Compose, Flower, Qdrant and the clients of Docker and Kubernetes themselves, so no settings of ours.
IMAGES = {f"{name}_IMAGE" for name in ("REDIS", "QDRANT", "PROMETHEUS", "GRAFANA")}
FILLED_IN = IMAGES | {
    "RUN_AS",
    "NO_PROXY",
    "CONFIG_DIR",
    "CALLERS_DIR",
    "CREDENTIALS_DIR",
    "FLOWER_BASIC_AUTH",
    "REDIS_PASSWORD",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "WATCH_DOCKER_HOST",
    "WATCH_KUBECONFIG",
}
GRAFANAS = {
    *(f"GF_AUTH_{name}" for name in ("ANONYMOUS_ENABLED", "ANONYMOUS_ORG_ROLE", "BASIC_ENABLED", "DISABLE_LOGIN_FORM")),
    *(f"GF_ANALYTICS_{name}" for name in ("REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES")),
    "GF_PLUGINS_PREINSTALL_DISABLED",
}
STORES = {"QDRANT__TELEMETRY_DISABLED", "QDRANT_INIT_FILE_PATH", "QDRANT__SERVICE__API_KEY", "REDISCLI_AUTH"}
FOREIGN = {"no_proxy", "DOCKER_HOST", "KUBECONFIG"} | STORES | FILLED_IN | GRAFANAS

each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("vendor.compose-spec", COMPOSE),
        ("vendor.github-workflows", ROOT / ".github/workflows/ci.yml"),
        ("vendor.github-workflows", ROOT / ".github/workflows/image.yml"),
        ("vendor.github-workflows", ROOT / ".github/workflows/release.yml"),
        ("vendor.dependabot", ROOT / ".github/dependabot.yml"),
    ],
    ids=["compose", "ci", "image", "release", "dependabot"],
)
def test_the_file_follows_its_published_schema(schema: str, path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_composition_has_the_services_of_the_design() -> None:
    assert set(SERVICES) == {"redis", "qdrant", "prometheus", "grafana", *OURS}


def test_ci_walks_the_path_to_a_chart_that_is_written_down() -> None:
    workflow = (ROOT / ".github/workflows/image.yml").read_text(encoding="utf-8")
    in_ci = [command.replace("exec ", "exec -T ") for command in path()]

    assert [command.split()[:3] for command in path()] == [["docker", "compose", "--profile"]] + [
        ["docker", "compose", "exec"]
    ] * 3
    assert [workflow.find(command) for command in in_ci] == sorted(map(workflow.find, in_ci))
    assert all(command in workflow for command in in_ci)


@pytest.mark.parametrize("name", ["ci", "image", "release"])
def test_a_workflow_runs_actions_of_exact_commits_and_may_only_read(name: str) -> None:
    text = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: (.*)$", text, re.MULTILINE)

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_ci_runs_targets_that_the_makefile_has() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))

    assert set(re.findall(r"run: make ([a-z-]+)", workflow)) == {"check", "test-qdrant", "demo"} <= targets
    assert "make test" in (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_ci_tests_with_the_qdrant_that_is_deployed() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]

    assert job["services"]["qdrant"]["image"] == image_of("qdrant")
    assert job["env"]["QDRANT_URL"] == "http://127.0.0.1:6333"
    (program,) = (step["run"] for step in job["steps"] if "QDRANT_BINARY=" in step.get("run", ""))
    assert f"$(docker create {image_of('qdrant')})" in program


def test_ci_tests_with_the_history_that_the_rollback_needs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))

    assert workflow["jobs"]["test"]["steps"][0]["with"]["fetch-depth"] == 0


def test_ci_installs_the_chart_beside_the_stores_that_are_deployed() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/image.yml").read_text(encoding="utf-8"))
    steps = "\n".join(step.get("run", "") for step in workflow["jobs"]["cluster"]["steps"])

    assert set(re.findall(r"--image=(\S+)", steps)) == {image_of(store) for store in ("redis", "qdrant")}
    assert f"kind load docker-image {image_of('worker')}" in steps


def image_of(name: str) -> str:
    """Return the image of a service where no variable replaces it."""
    return filled_in(SERVICES[name]["image"], {})


def test_one_service_builds_the_image_of_all_and_none_is_pulled() -> None:
    # built by several at the same time, the second to be done fails where there was no such image before
    assert [name for name, service in SERVICES.items() if "build" in service] == ["worker"]
    assert {SERVICES[name]["image"] for name in OURS} == {SERVICES["worker"]["image"]}
    assert {name: SERVICES[name]["pull_policy"] for name in OURS} == dict.fromkeys(OURS, "never")


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - OURS))
def test_an_image_that_is_not_built_here_can_be_replaced(name: str) -> None:
    other = "mirror.example.org/image@sha256:" + "0" * 64

    assert filled_in(SERVICES[name]["image"], {f"{name.upper()}_IMAGE": other}) == other


# The registry has no image whose name has no tag, or another character than those of a name.
DOCKER_THAT_INSPECTS = """#!/bin/sh
[ "$1 $2 $3" = "buildx imagetools inspect" ] || exit 1
echo "$6" | grep -qxE '[a-z0-9/._-]+:[A-Za-z0-9_][A-Za-z0-9._-]*' && echo "sha256:$6"
"""


def test_every_image_is_printed_by_digest_for_the_environment_file(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER_THAT_INSPECTS, encoding="utf-8")
    docker.chmod(0o755)

    printed = subprocess.run(
        [ROOT / "deploy/pin-images"],
        env={"PATH": f"{tmp_path}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=True,
    )

    base = re.search(r"^ARG PYTHON_IMAGE=(.+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert base is not None
    images = {f"{name.upper()}_IMAGE": image_of(name) for name in SERVICES.keys() - OURS} | {"PYTHON_IMAGE": base[1]}
    assert sorted(printed.stdout.splitlines()) == sorted(
        f"{name}={image}@sha256:{image}" for name, image in images.items()
    )
    assert images.keys() - IMAGES == set(SERVICES["worker"]["build"]["args"])


@pytest.mark.parametrize("name", OURS)
def test_a_service_runs_as_the_images_user_or_as_who_may_read_the_operators_files(name: str) -> None:
    (image_user,) = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)

    assert filled_in(SERVICES[name]["user"], {}) == image_user
    assert filled_in(SERVICES[name]["user"], {"RUN_AS": "1000:1000"}) == "1000:1000"


@pytest.mark.parametrize("name", OURS)
def test_a_service_may_open_the_files_that_its_settings_ask_for(name: str) -> None:
    settings = Settings()

    assert SERVICES[name]["ulimits"]["nofile"] > 4 * (settings.worker_concurrency + MAX_CONNECTIONS)


@each_service
def test_every_image_is_pinned_to_an_exact_version(service: dict[str, Any]) -> None:
    assert re.search(r":v?\d+\.\d+\.\d+", filled_in(service["image"], {})), service["image"]


@each_service
def test_every_service_has_a_health_check_limits_and_no_privileges(service: dict[str, Any]) -> None:
    assert service["healthcheck"]["test"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["pids_limit"] == 1024
    assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}


@each_service
def test_every_published_port_is_on_loopback(service: dict[str, Any]) -> None:
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("store", ["redis", "qdrant"])
def test_the_stores_are_reached_by_the_services_alone(store: str) -> None:
    networks = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["networks"]

    assert "ports" not in SERVICES[store]
    assert SERVICES[store]["networks"] == ["backend"]
    assert networks["backend"]["internal"] is True


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_monitoring_does_not_reach_the_stores(name: str) -> None:
    # no network is the default one, which the services that are read are on as well
    assert "networks" not in SERVICES[name]
    assert all("default" in SERVICES[read]["networks"] for read in OURS)


@pytest.mark.parametrize(
    ("name", "stores"),
    [
        ("worker", {"redis", "qdrant"}),
        ("beat", {"redis"}),
        ("notifications", {"redis"}),
        ("watch-docker", {"redis"}),
        ("watch-kubernetes", {"redis"}),
        ("events-api", {"redis"}),
        ("query", {"qdrant"}),
        ("flower", {"redis"}),
    ],
)
def test_a_service_waits_until_its_stores_are_healthy(name: str, stores: set[str]) -> None:
    assert SERVICES[name]["depends_on"] == {store: {"condition": "service_healthy"} for store in stores}


@each_service
def test_every_variable_is_a_known_setting(service: dict[str, Any]) -> None:
    assert set(service.get("environment", {})) <= known_settings() | FOREIGN


def test_every_variable_that_compose_fills_in_is_known_and_none_is_required() -> None:
    text = COMPOSE.read_text(encoding="utf-8")
    filled_in = re.findall(r"(?<!\$)\$\{(\w+)(\S*?)\}", text)

    assert {name for name, _ in filled_in} <= known_settings() | FOREIGN
    # a required variable would make the file unusable for users without this service
    assert all(rule.startswith((":-", ":+")) for _, rule in filled_in)


@pytest.mark.parametrize("name", OURS)
def test_the_module_that_a_command_names_exists(name: str) -> None:
    words = shlex.split(" ".join(SERVICES[name]["command"]))
    module = words[words.index("-A") + 1] if "-A" in words else f"{words[words.index('-m') + 1]}.__main__"

    assert importlib.util.find_spec(module) is not None, module


def test_a_worker_that_is_asked_to_end_has_the_time_it_takes() -> None:
    assert grace_period_s("worker") >= Settings().shutdown_grace_s + 10


@pytest.mark.parametrize("timeout_s", [None, 7.5])
def test_the_query_service_has_the_time_of_its_longest_call(timeout_s: float | None) -> None:
    given = {} if timeout_s is None else {"TOOLSCALE_CALL_TIMEOUT_S": str(timeout_s)}
    settings = Settings() if timeout_s is None else Settings(call_timeout_s=timeout_s)

    # 3: the exit of a stdio server before SIGTERM and after SIGKILL
    assert grace_period_s("query", given) >= grace_s_of(settings) + RESPONSE_S + INSTALLER_GRACE_S + 3


def mounted(service: str, target: str) -> dict[str, Any]:
    """Return what a service has at this path."""
    (mount,) = (volume for volume in SERVICES[service]["volumes"] if volume["target"] == target)
    return cast("dict[str, Any]", mount)


@pytest.mark.parametrize("name", ["worker", "notifications", "query"])
def test_who_lists_hears_and_calls_reads_the_operators_file_which_has_a_default(name: str) -> None:
    mount = mounted(name, "/etc/toolscale/config")
    config = Path(SERVICES[name]["environment"]["TOOLSCALE_MCP_CONFIG"])

    assert str(config.parent) == mount["target"]
    assert read_config(directory_of(mount, "CONFIG_DIR") / config.name, {}).targets == {}
    assert SERVICES[name]["extra_hosts"] == ["host.docker.internal:host-gateway"]


# The services that connect to servers, and so keep their connections away from Qdrant.
CONNECTED = ("worker", "notifications", "query")
FOR_ONE = {"TOOLSCALE_EVENTS_TOKEN", "FLOWER_BASIC_AUTH", "TOOLSCALE_CURSOR_KEY"}


def test_secrets_are_given_to_the_services_that_use_them_alone() -> None:
    knows_credentials = {name for name, service in SERVICES.items() if "env_file" in service}
    given = {
        name: {key for key in FOR_ONE if service["environment"].get(key)}
        for name, service in SERVICES.items()
        if name in OURS
    }

    assert knows_credentials == set(CONNECTED)
    assert given == {
        "worker": set(),
        "beat": set(),
        "notifications": set(),
        "watch-docker": set(),
        "watch-kubernetes": set(),
        "query": set(),
        "events-api": {"TOOLSCALE_EVENTS_TOKEN"},
        "flower": {"FLOWER_BASIC_AUTH"},
    }
    for name in knows_credentials:
        # the variable overrides the file; only the query service reads the key of cursors from the file
        left = FOR_ONE - SERVICES[name]["environment"].keys()
        assert left == ({"TOOLSCALE_CURSOR_KEY"} if name == "query" else set())


def directory_of(mount: dict[str, Any], name: str) -> Path:
    """Return the directory that is mounted where the operator names none by this variable."""
    default = re.fullmatch(rf"\$\{{{name}:-(.+)\}}", mount["source"])
    assert default is not None, mount
    # not a file: one that an editor replaces would stay as it was for who has it mounted
    assert (ROOT / default[1]).is_dir()
    assert mount["read_only"] is True
    return ROOT / default[1]


def test_the_query_service_reads_callers_from_a_directory_and_asks_for_tokens_where_the_operator_says_so() -> None:
    callers = directory_of(mounted("query", "/etc/toolscale/callers"), "CALLERS_DIR")
    settings = SERVICES["query"]["environment"].keys()

    assert read_tokens(callers / "tokens.toml") == {}
    # the value of `.env`, without a default
    assert settings.isdisjoint({"TOOLSCALE_TOKENS_FILE", "TOOLSCALE_POLICY_FILE", "TOOLSCALE_JWT_JWKS"})
    assert {"path": ".env", "required": False} in SERVICES["query"]["env_file"]


@pytest.mark.parametrize("name", ["worker", "notifications", "query"])
def test_who_reaches_servers_has_their_credentials_and_no_other_service_does(name: str) -> None:
    mount = mounted(name, "/etc/toolscale/credentials")
    others = [service for service in SERVICES.values() if "env_file" not in service]

    assert [file.name for file in directory_of(mount, "CREDENTIALS_DIR").iterdir()] == [".gitignore"]
    assert SERVICES[name]["environment"]["TOOLSCALE_CREDENTIALS_DIR"] == mount["target"]
    assert all("credentials" not in str(service.get("volumes")) for service in others)


CHECKED_BY_HTTP = (
    *("qdrant", "worker", "beat", "notifications", "watch-docker", "watch-kubernetes"),
    *("events-api", "query", "flower"),
)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_hosts_that_are_no_hosts_of_the_proxy_are_reached_without_it(name: str, variable: str) -> None:
    own = {"qdrant", "query", "host.docker.internal"}

    for given in ({}, {"NO_PROXY": "inside.lan"}):
        hosts = filled_in(SERVICES[name]["environment"][variable], given).split(",")
        assert set(hosts) - {""} == own | set(given.values())


FROM_FILE = {"REDIS_PASSWORD": "of-redis" * 8, "QDRANT_API_KEY": "of-qdrant" * 8}


def redis_command(given: dict[str, str]) -> list[str]:
    return [filled_in(word, given) for word in SERVICES["redis"]["command"]]


@pytest.mark.parametrize("given", [{}, FROM_FILE], ids=["default", "env"])
def test_the_services_have_the_secrets_that_the_stores_require(given: dict[str, str]) -> None:
    def environment(name: str) -> dict[str, str]:
        return {key: filled_in(value, given) for key, value in SERVICES[name]["environment"].items()}

    password, key = environment("redis")["REDISCLI_AUTH"], environment("qdrant")["QDRANT__SERVICE__API_KEY"]

    assert redis_command(given)[-2:] == ["--requirepass", password]
    assert {environment(name)["REDIS_URL"] for name in OURS} == {f"redis://:{password}@redis:6379/0"}
    with_index = {name: environment(name) for name in OURS if "QDRANT_URL" in environment(name)}
    assert {name: given["QDRANT_API_KEY"] for name, given in with_index.items()} == dict.fromkeys(CONNECTED, key)
    assert not [name for name in OURS if name not in with_index and "QDRANT_API_KEY" in environment(name)]
    assert [password, key] == (list(FROM_FILE.values()) if given else ["toolscale"] * 2)


@pytest.mark.redis
@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_redis_started_by_its_command_refuses_clients_without_the_password(tmp_path: Path) -> None:
    with (
        running_redis(redis_command(FROM_FILE), tmp_path) as redis,
        Redis(unix_socket_path=redis.connection_pool.connection_kwargs["path"]) as stranger,
        pytest.raises(AuthenticationError),
    ):
        stranger.ping()


@pytest.mark.redis
@pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")
def test_redis_started_by_its_command_appends_every_write_and_evicts_nothing(tmp_path: Path) -> None:
    with running_redis(redis_command({}), tmp_path) as redis:
        config = cast("dict[str, str]", redis.config_get("append*", "maxmemory*"))

    assert config["appendonly"] == "yes"
    assert config["appendfsync"] == "everysec"
    assert config["maxmemory-policy"] == "noeviction"
    limit = SERVICES["redis"]["deploy"]["resources"]["limits"]["memory"]
    # a fork that rewrites the file copies each page that changes meanwhile
    assert int(limit.removesuffix("m")) << 20 >= 2 * int(config["maxmemory"])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("redis", {"/data"}),
        ("qdrant", {"/qdrant/storage", "/qdrant/snapshots"}),
        ("prometheus", {"/prometheus"}),
        ("grafana", {"/var/lib/grafana"}),
    ],
)
def test_the_directories_that_a_read_only_service_writes_are_mounted(name: str, written: set[str]) -> None:
    volumes = [volume for volume in SERVICES[name].get("volumes", []) if isinstance(volume, str)]

    mounted = {volume.partition(":")[2] for volume in volumes} | set(SERVICES[name]["tmpfs"])
    assert mounted == written | {"/tmp"}


@pytest.mark.parametrize("name", CHECKED_BY_HTTP)
@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_a_health_check_passes_on_200_alone(name: str, status: int, healthy: bool) -> None:
    with answering(status) as port:
        command = [
            re.sub(r"6333|876[56]|5555|9464", str(port), word) for word in SERVICES[name]["healthcheck"]["test"][1:]
        ]
        command = [sys.executable if word == "python" else word for word in command]

        # Docker passes its configured proxy to containers, and the proxy cannot reach their ports
        proxies = os.environ | {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
        checked = subprocess.run(command, env=proxies, capture_output=True, timeout=60, check=False)

    assert (checked.returncode == 0) is healthy, checked.stderr


def test_a_health_check_of_ours_requests_readiness() -> None:
    routes = {name: re.findall(r'"GET", "(/\w+)"', " ".join(SERVICES[name]["healthcheck"]["test"])) for name in OURS}

    assert routes == {name: ["/healthcheck" if name == "flower" else "/readyz"] for name in OURS}


@pytest.mark.parametrize("profile", ["docker", "kubernetes"])
def test_a_watcher_is_started_on_demand_and_knows_the_command_that_it_runs(profile: str) -> None:
    service = SERVICES[f"watch-{profile}"]

    helped = CliRunner().invoke(app, [*service["command"][3:], "--help"])

    assert service["profiles"] == [profile]
    assert service["command"][:3] == ["python", "-m", "toolscale"]
    assert helped.exit_code == 0


def test_prometheus_reads_every_service_of_ours_at_the_port_where_it_shows_metrics() -> None:
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    found = [entry for job in document["scrape_configs"] for entry in job["dns_sd_configs"]]
    read = {name: str(entry["port"]) for entry in found for name in entry["names"]}

    environment = {name: SERVICES[name]["environment"] for name in OURS if name != "flower"}
    ports = ("TOOLSCALE_METRICS_PORT", "TOOLSCALE_PORT", "TOOLSCALE_EVENTS_PORT")
    assert read == {name: next(given[port] for port in ports if port in given) for name, given in environment.items()}
    assert {environment[name]["TOOLSCALE_METRICS_PUBLIC"] for name in ("query", "events-api")} == (
        {"${TOOLSCALE_METRICS_PUBLIC:-true}"}
    )


@pytest.mark.parametrize("name", ["prometheus", "grafana"])
def test_monitoring_is_started_on_demand_with_files_that_exist(name: str) -> None:
    mounts = [cast("dict[str, Any]", volume) for volume in SERVICES[name]["volumes"] if isinstance(volume, dict)]

    assert SERVICES[name]["profiles"] == ["monitoring"]
    assert all((ROOT / mount["source"]).is_dir() and mount["read_only"] for mount in mounts)


def test_grafana_finds_its_data_source_and_nobody_can_log_in() -> None:
    provisioned = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((provisioned / "datasources/prometheus.yml").read_text(encoding="utf-8"))["datasources"]
    (folder,) = yaml.safe_load((provisioned / "dashboards/toolscale.yml").read_text(encoding="utf-8"))["providers"]
    environment = SERVICES["grafana"]["environment"]

    assert source["url"] == "http://prometheus:9090"
    assert folder["options"]["path"] in [mount["target"] for mount in SERVICES["grafana"]["volumes"]]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"


def test_flower_does_not_start_without_a_password() -> None:
    command = [word.replace("$$", "$") for word in SERVICES["flower"]["command"]]

    started = subprocess.run(command, env={"PATH": ""}, executable="/bin/sh", capture_output=True, check=False)

    assert started.returncode != 0
    assert b"set FLOWER_BASIC_AUTH" in started.stderr


def test_the_events_api_starts_on_demand_and_not_without_a_token() -> None:
    events_api = SERVICES["events-api"]

    assert events_api["profiles"] == ["events-api"]
    assert events_api["environment"]["TOOLSCALE_EVENTS_TOKEN"] == "${TOOLSCALE_EVENTS_TOKEN:-}"


def test_the_image_is_built_on_an_exact_version_and_runs_as_nobody_special() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")

    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+$", text, re.MULTILINE)
    assert {image for image, _ in stages} - {name for _, name in stages} == {"${PYTHON_IMAGE}"}
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", text, re.MULTILINE)


def test_no_process_of_a_container_shows_its_environment_to_stdio_servers() -> None:
    # Docker's own init would keep all secrets in a readable environment; health checks are processes of Python
    assert [name for name, service in SERVICES.items() if "init" in service] == []
    assert 'chmod 0711 "$(readlink -f "$(command -v python)")"' in DOCKERFILE.read_text(encoding="utf-8")
    assert {SERVICES[name]["healthcheck"]["test"][1] for name in OURS} == {"python"}


def test_everything_that_the_image_copies_is_there_and_let_in() -> None:
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    let_in = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()

    assert copied
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert [source for source in copied if f"!{source}" not in let_in] == []


def known_settings() -> set[str]:
    """Return the names by which the environment may give a setting."""
    plain = {"REDIS_URL", "QDRANT_URL", "QDRANT_API_KEY"}
    return plain | {f"TOOLSCALE_{name.upper()}" for name in Settings.model_fields}


@contextmanager
def running_redis(command: list[str], directory: Path) -> Generator[Redis]:
    """Start Redis by this command in `directory`, on a new socket, and stop it at the end."""
    socket = directory / "redis.sock"
    arguments = [*command, "--port", "0", "--unixsocket", str(socket), "--dir", str(directory)]
    password = dict(pairwise(command))["--requirepass"]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        try:
            with Redis(unix_socket_path=str(socket), password=password, decode_responses=True) as redis:
                wait_until_it_answers(redis)
                yield redis
        finally:
            process.terminate()


def wait_until_it_answers(redis: Redis) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            redis.ping()
        except RedisConnectionError:
            threading.Event().wait(0.02)
        else:
            return
    pytest.fail("Redis did not answer within 60 s")


@contextmanager
def answering(status: int) -> Generator[int]:
    """Answer every GET with this status; yields the port."""

    class Handler(SilentHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield server.server_port
