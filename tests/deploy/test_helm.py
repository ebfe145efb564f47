"""The Helm chart: it renders, follows the schemas of Kubernetes, and fits the code that it starts."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("helm_python", reason="no build of Helm's engine for this machine")

import helm_python as helm
import kubernetes_validate

from query.api import PATH as API_PATH
from query.api import TOOLSETS_PATH
from query.listener import MCP_PATH
from query.service import RESPONSE_S, grace_s_of
from query.web.routes import PATH as UI_PATH
from shared.settings import Settings
from shared.upstream.processes import INSTALLER_GRACE_S
from tests.support.chart import (
    CHART,
    PORTS,
    ROOT,
    Manifest,
    component,
    container,
    deployments,
    environment,
    manifests,
    rendered,
    values_of,
)
from toolscale.app import app
from workers.celery_app import SHUTDOWN_GRACE_S, build_app
from workers.sources.kubernetes import RESOURCE_KINDS

FILES = ("minimal", "full")
VERSIONS = ("1.29", "1.37")  # the oldest that the chart takes, and the newest with schemas here
FOREIGN = {"ScaledObject", "PodMonitor", "PrometheusRule"}  # of KEDA and the Prometheus Operator
# Read by Flower, and by the clients of TLS and of traces.
OF_COMMANDS = {"TOOLSCALE_URL", "TOOLSCALE_TOKEN"}
OF_OTHERS = OF_COMMANDS | {
    "FLOWER_BASIC_AUTH",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "OTEL_EXPORTER_OTLP_HEADERS",
}
FULL = deployments("full")
each_deployment = pytest.mark.parametrize("name", FULL)


@pytest.mark.parametrize("file", FILES)
def test_the_chart_passes_a_strict_lint(file: str) -> None:
    report = helm.lint(str(CHART), values_of(file), strict=True, namespace="tools")

    assert [message for message in report["messages"] if message["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", FILES)
def test_every_manifest_follows_the_published_schema_of_its_kind(file: str, version: str) -> None:
    checked = [manifest for manifest in manifests(file) if manifest["kind"] not in FOREIGN]

    for manifest in checked:
        kubernetes_validate.validate(manifest, version, strict=True)
    assert len(checked) > 10


def test_what_is_not_asked_for_is_not_started() -> None:
    assert set(deployments("minimal")) == {"beat", "notifications", "query", "worker-default"}
    assert set(FULL) == {*deployments("minimal"), "worker-burst", "events-api", "watcher", "flower"}


def test_alerts_have_an_absolute_runbook_where_the_documents_have_an_address() -> None:
    def annotations(docs_url: str) -> list[dict[str, str]]:
        values = {"monitoring": {"rules": True, "docsUrl": docs_url}}
        (rules,) = [
            manifest for manifest in rendered(values_of("minimal") | values) if manifest["kind"] == "PrometheusRule"
        ]
        return [rule["annotations"] for group in rules["spec"]["groups"] for rule in group["rules"]]

    absolute, relative = annotations("https://docs.example.org/toolscale/"), annotations("")

    url = "https://docs.example.org/toolscale/operations.md#when-an-alert-fires"
    assert {found.get("runbook_url") for found in absolute} == {url}
    assert not [found for found in absolute if "runbook" in found]
    assert {found.get("runbook") for found in relative} == {"docs/operations.md#when-an-alert-fires"}


# --- the code that it starts ---


@each_deployment
def test_every_variable_is_a_setting_and_is_given_once(name: str) -> None:
    names = [variable["name"] for variable in container(FULL[name])["env"]]

    assert len(names) == len(set(names))
    assert set(names) <= known_settings() | OF_OTHERS


@pytest.mark.parametrize("name", sorted(set(FULL) - {"flower"}))
def test_what_the_variables_say_are_settings_that_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    references = {"REDIS_URL": "redis://redis:6379/0", "QDRANT_URL": "https://qdrant:6333"}
    for key, value in environment(FULL[name]).items():
        monkeypatch.setenv(key, value if isinstance(value, str) else references.get(key, "x" * 32))

    settings = Settings()

    assert settings.log_level == "DEBUG"
    assert settings.resync_interval_s == 600


@each_deployment
def test_the_module_that_a_command_names_exists(name: str) -> None:
    words = shlex.split(" ".join(container(FULL[name])["command"]))
    module = words[words.index("-A") + 1] if "-A" in words else f"{words[words.index('-m') + 1]}.__main__"

    assert importlib.util.find_spec(module) is not None, module


def test_the_watcher_runs_a_command_that_exists() -> None:
    served = container(FULL["watcher"])
    helped = CliRunner().invoke(app, [*served["command"][3:], *served["args"], "--help"])

    assert helped.exit_code == 0
    assert served["args"] == ["--selector", "toolscale.dev/server"]


def test_a_group_scales_by_the_queue_that_all_workers_consume() -> None:
    (trigger,) = manifests("full", "ScaledObject")[0]["spec"]["triggers"]

    assert trigger["metadata"]["listName"] == build_app(Settings(redis_url="redis://localhost")).conf.task_default_queue
    # without this option, a worker consumes the default queue
    assert not [name for name in ("worker-default", "worker-burst") if "--queues" in container(FULL[name])["command"]]


@pytest.mark.parametrize("name", ["worker-default", "worker-burst"])
def test_a_worker_that_is_asked_to_end_has_the_time_it_takes(name: str) -> None:
    grace_s = FULL[name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]

    assert grace_s == SHUTDOWN_GRACE_S + 15


def pre_stop_s(deployment: Manifest) -> int:
    """Return the seconds that the container sleeps before SIGTERM; a program other than python is readable."""
    *python, code = container(deployment)["lifecycle"]["preStop"]["exec"]["command"]
    assert python == ["python", "-ISc"]
    found = re.fullmatch(r"import time; time\.sleep\((\d+)\)", code)
    assert found is not None
    return int(found[1])


CALL_TIMEOUT = "TOOLSCALE_CALL_TIMEOUT_S"


@pytest.mark.parametrize(
    ("own", "of_all", "timeout_s"),
    [({}, {}, None), ({}, {CALL_TIMEOUT: "120"}, 120.0), ({CALL_TIMEOUT: "7.5"}, {CALL_TIMEOUT: "120"}, 7.5)],
)
def test_the_query_service_has_the_time_of_its_longest_call(
    own: dict[str, str], of_all: dict[str, str], timeout_s: float | None
) -> None:
    values = values_of("minimal")
    values |= {"settings": of_all, "query": {**values["query"], "settings": own}}
    (query,) = [found for found in rendered(values) if found["kind"] == "Deployment" and component(found) == "query"]
    settings = Settings() if timeout_s is None else Settings(call_timeout_s=timeout_s)
    pod = query["spec"]["template"]["spec"]
    before_s = pre_stop_s(query)

    # 3: the exit of a stdio server before SIGTERM and after SIGKILL
    assert pod["terminationGracePeriodSeconds"] >= before_s + grace_s_of(settings) + RESPONSE_S + INSTALLER_GRACE_S + 3


def test_the_watcher_may_list_what_it_follows_and_nothing_else() -> None:
    (role,) = manifests("full", "ClusterRole")
    allowed = {(group, kind) for rule in role["rules"] for group in rule["apiGroups"] for kind in rule["resources"]}
    followed = {re.fullmatch(r"/apis?/(?:([^/]+\.[^/]+)/)?v\w+/(\w+)", kind.path) for kind in RESOURCE_KINDS}

    assert allowed == {(found[1] or "", found[2]) for found in followed if found}
    assert all(rule["verbs"] == ["list"] for rule in role["rules"])


def test_the_watcher_alone_has_a_token_for_kubernetes() -> None:
    (binding,) = manifests("full", "ClusterRoleBinding")
    with_token = {
        name: deployment["spec"]["template"]["spec"]["serviceAccountName"]
        for name, deployment in FULL.items()
        if deployment["spec"]["template"]["spec"]["automountServiceAccountToken"]
    }

    assert with_token == {"watcher": binding["subjects"][0]["name"]}
    assert {manifest["metadata"]["name"] for manifest in manifests("full", "ServiceAccount")} >= set(
        with_token.values()
    )


# --- probes ---


ROUTES = {
    "worker-default": "workers/monitoring/port.py",
    "worker-burst": "workers/monitoring/port.py",
    "query": "query/app.py",
    "events-api": "workers/events_api/api.py",
}


@pytest.mark.parametrize("name", ROUTES)
def test_a_probe_asks_a_route_that_exists_at_the_port_that_is_listened_on(name: str) -> None:
    served = container(FULL[name])
    sources = (ROOT / file for file in (ROUTES[name], "shared/service/routes.py"))
    routes = {route for source in sources for route in re.findall(r'Route\("(/\w+)"', source.read_text("utf-8"))}
    (port,) = served["ports"]
    own = next(value for key, value in environment(FULL[name]).items() if key in LISTENING_PORTS)

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert served[probe]["httpGet"]["path"] in routes
        assert served[probe]["httpGet"]["port"] == port["name"]
    assert str(port["containerPort"]) == own
    assert served["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert served["readinessProbe"]["httpGet"]["path"] == "/readyz"


LISTENING_PORTS = ("TOOLSCALE_METRICS_PORT", "TOOLSCALE_PORT", "TOOLSCALE_EVENTS_PORT")


@pytest.mark.parametrize("name", ["beat", "notifications", "watcher"])
def test_a_process_that_stops_its_work_is_restarted(name: str) -> None:
    served = container(FULL[name])
    (port,) = served["ports"]

    assert str(port["containerPort"]) == environment(FULL[name])["TOOLSCALE_METRICS_PORT"] == str(PORTS["worker"])
    for probe, route in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert served[probe]["httpGet"] == {"path": route, "port": port["name"]}


# --- what every pod has, and who reaches whom ---


@each_deployment
def test_every_pod_runs_without_privileges_on_a_root_that_is_read_only(name: str) -> None:
    pod = FULL[name]["spec"]["template"]["spec"]
    context = container(FULL[name])["securityContext"]

    user = re.search(r"^USER (\d+):", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user is not None
    assert pod["securityContext"]["runAsUser"] == int(user[1])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
    assert container(FULL[name])["resources"].keys() == {"requests", "limits"}


@each_deployment
def test_no_service_of_ours_becomes_a_setting(name: str) -> None:
    # Kubernetes would set TOOLSCALE_EVENTS_PORT=tcp://10.0.0.1:8766 in every pod
    assert FULL[name]["spec"]["template"]["spec"]["enableServiceLinks"] is False


@each_deployment
def test_every_mount_has_its_volume_and_every_file_of_a_setting_is_mounted(name: str) -> None:
    mounts = container(FULL[name])["volumeMounts"]
    volumes = {volume["name"] for volume in FULL[name]["spec"]["template"]["spec"]["volumes"]}
    files = [value for value in environment(FULL[name]).values() if isinstance(value, str) and value.startswith("/")]

    assert {mount["name"] for mount in mounts} == volumes
    # whole directories: a file that is mounted by itself is not renewed
    assert all("subPath" not in mount for mount in mounts)
    assert all(any(f"{file}/".startswith(f"{mount['mountPath']}/") for mount in mounts) for file in files)


@pytest.mark.parametrize("file", FILES)
def test_every_selector_finds_the_pods_of_its_component_alone(file: str) -> None:
    pods = {
        name: deployment["spec"]["template"]["metadata"]["labels"] for name, deployment in deployments(file).items()
    }

    for manifest in manifests(file, "Deployment", "Service", "PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert [name for name, labels in pods.items() if wanted <= labels.items()] == [component(manifest)]


@pytest.mark.parametrize("file", FILES)
def test_what_leads_to_a_service_leads_to_a_port_of_its_container(file: str) -> None:
    found = deployments(file)

    for service in manifests(file, "Service"):
        (port,) = service["spec"]["ports"]
        (listening,) = container(found[component(service)])["ports"]
        assert port["targetPort"] == listening["name"]
        assert listening["containerPort"] == PORTS[component(service)]


def test_what_scales_names_a_deployment_that_says_no_number_of_its_own() -> None:
    targets = [
        manifest["spec"]["scaleTargetRef"]["name"]
        for manifest in manifests("full", "HorizontalPodAutoscaler", "ScaledObject")
    ]

    assert sorted(targets) == ["toolscale-query", "toolscale-worker-burst"]
    assert all("replicas" not in FULL[target.removeprefix("toolscale-")]["spec"] for target in targets)
    assert FULL["worker-default"]["spec"]["replicas"] == 2


def test_the_network_is_closed_but_for_what_each_component_serves() -> None:
    policies = {component(manifest): manifest["spec"] for manifest in manifests("full", "NetworkPolicy")}
    inward = {
        name: {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
        for name, policy in policies.items()
        if "ingress" in policy
    }

    assert policies["all"]["policyTypes"] == ["Ingress", "Egress"]
    assert "component" not in json.dumps(policies["all"]["podSelector"])
    assert inward == {
        "query": {PORTS["query"]},
        "events-api": {PORTS["events-api"]},
        "flower": {PORTS["flower"]},
        **{name: {PORTS["worker"]} for name in ("worker-default", "worker-burst", "beat", "notifications", "watcher")},
    }


def test_workers_and_flower_are_reached_by_nobody_unless_it_is_said_who() -> None:
    opened = {
        component(manifest) for manifest in manifests("minimal", "NetworkPolicy") if "ingress" in manifest["spec"]
    }

    assert opened == {"query"}


def egress(name: str) -> list[dict[str, Any]]:
    """Return what a policy lets out."""
    policies = {component(manifest): manifest["spec"] for manifest in manifests("full", "NetworkPolicy")}
    return cast("list[dict[str, Any]]", policies[name]["egress"])


def test_servers_are_reached_by_either_protocol_and_the_clouds_metadata_by_none() -> None:
    blocks = {
        ip_network(to["ipBlock"]["cidr"]): [ip_network(network) for network in to["ipBlock"]["except"]]
        for rule in egress("servers")
        for to in rule.get("to", [])
        if "ipBlock" in to
    }

    assert set(blocks) == {ip_network("0.0.0.0/0"), ip_network("::/0")}
    for address in map(ip_address, ("169.254.169.254", "fd00:ec2::254", "fe80::1")):
        (left_out,) = (left_out for block, left_out in blocks.items() if block.version == address.version)
        assert any(address in network for network in left_out)


def test_every_pod_reaches_redis_and_its_sentinels() -> None:
    stores = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "stores"}}}]
    (ports,) = [[port["port"] for port in rule["ports"]] for rule in egress("all") if rule.get("to") == stores]

    assert ports == [6379, 26379]


def test_traces_leave_every_pod_that_makes_some() -> None:
    out = {rule["ports"][0]["port"]: rule["to"] for rule in egress("all") if "to" in rule}

    assert out[4318] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}]


def test_who_reads_metrics_is_let_in_where_askers_are_named() -> None:
    policies = {component(manifest): manifest["spec"] for manifest in manifests("full", "NetworkPolicy")}
    names = {
        name: {
            str(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])
            for peer in policies[name]["ingress"][0].get("from", [])
            if "namespaceSelector" in peer  # the others are our own pods, for commands
        }
        for name in ("query", "events-api", "worker-default")
    }

    # no peers are given for the events API, so all peers have access
    assert names == {"query": {"ingress-nginx", "monitoring"}, "events-api": set(), "worker-default": {"monitoring"}}


def test_an_ingress_publishes_what_clients_ask_for_and_no_metrics() -> None:
    (ingress,) = manifests("full", "Ingress")
    paths = {path["path"]: path["pathType"] for path in ingress["spec"]["rules"][0]["http"]["paths"]}

    assert paths.pop("/") == "Exact"
    assert paths == dict.fromkeys(("/mcp", "/ui", "/toolsets", "/api", "/.well-known"), "Prefix")
    assert paths.keys() >= {MCP_PATH, UI_PATH, TOOLSETS_PATH, API_PATH}


# --- monitoring ---


def test_prometheus_reads_every_process_as_the_jobs_of_the_composition() -> None:
    jobs = dict[str, str]()
    for monitor in manifests("full", "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        deployment = FULL[component(monitor)]
        assert monitor["spec"]["selector"] == deployment["spec"]["selector"]
        assert endpoint["port"] == container(deployment)["ports"][0]["name"]
        assert monitor["metadata"]["labels"]["release"] == "kube-prometheus-stack"
        jobs[component(monitor)] = endpoint["relabelings"][0]["replacement"]

    composed = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert jobs.keys() == FULL.keys() - {"flower"}
    assert set(jobs.values()) == {job["job_name"] for job in composed["scrape_configs"]}
    assert jobs["worker-burst"] == jobs["worker-default"] == "toolscale-worker"


def test_metrics_are_open_where_prometheus_is_told_to_read_them_and_nowhere_else() -> None:
    def opened(found: dict[str, Manifest]) -> set[str]:
        return {
            name
            for name, deployment in found.items()
            if environment(deployment).get("TOOLSCALE_METRICS_PUBLIC") == "true"
        }

    assert opened(FULL) == {"query", "events-api"}
    assert opened(deployments("minimal")) == set()


def test_alerts_and_dashboard_are_those_of_the_composition() -> None:
    (rule,) = manifests("full", "PrometheusRule")
    (dashboard,) = manifests("full", "ConfigMap")

    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
    made = json.loads(dashboard["data"]["toolscale.json"])
    assert made == json.loads((ROOT / "deploy/grafana/dashboards/toolscale.json").read_text(encoding="utf-8"))
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("file", FILES)
def test_the_chart_holds_no_secret(file: str) -> None:
    stores = {"REDIS_URL", "QDRANT_URL", "QDRANT_API_KEY"}
    secret = stores | {"TOOLSCALE_EVENTS_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"}

    assert manifests(file, "Secret") == []
    for deployment in deployments(file).values():
        given = environment(deployment)
        assert all("secretKeyRef" in given[name] for name in secret & given.keys())


def test_secrets_are_given_to_the_components_that_use_them_alone() -> None:
    def who(key: str) -> set[str]:
        return {name for name, deployment in FULL.items() if key in environment(deployment)}

    workers = {"worker-default", "worker-burst"}
    assert who("QDRANT_API_KEY") == {*workers, "query"}
    assert who("TOOLSCALE_CREDENTIALS_DIR") == {*workers, "query", "notifications"}
    assert who("TOOLSCALE_EVENTS_TOKEN") == {"events-api"}
    assert who("TOOLSCALE_TOKENS_FILE") == {"query"}
    assert who("TOOLSCALE_POLICY_FILE") == {*workers, "query"}
    assert who("FLOWER_BASIC_AUTH") == {"flower"}


# --- values ---

CALLERS = {"tokens": {"existingSecret": "callers"}}
NO_CPU = {"requests": {"cpu": None}}
KEDA = {"enabled": True, "address": "redis:6379"}
LONGER_CALLS = [{"name": CALL_TIMEOUT, "value": "600"}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"redis": {"existingSecret": ""}}, "/redis/existingSecret"),
        ({"settings": {"TOOLSCALE_RESYNC_INTERVAL_S": 600}}, "got number, want string"),
        ({"settings": {"TOOLSCALE_PORT": "1"}}, "invalid propertyName 'TOOLSCALE_PORT'"),
        ({"quary": {}}, "invalid propertyName 'quary'"),
        ({"beat": {"replicas": 2}}, "invalid propertyName 'replicas'"),
        ({"query": {}}, "say how callers are known"),
        ({"extraEnv": LONGER_CALLS}, "set TOOLSCALE_CALL_TIMEOUT_S in settings"),
        ({"query": CALLERS | {"extraEnv": LONGER_CALLS}}, "set TOOLSCALE_CALL_TIMEOUT_S in settings"),
        ({"query": {"jwt": {"issuer": "https://login"}}}, "an issuer needs jwks"),
        ({"query": {"allowUnauthenticated": True, "ingress": {"enabled": True}}}, "query.ingress"),
        ({"query": {"allowUnauthenticated": True, "service": {"type": "LoadBalancer"}}}, "query.service.type"),
        ({"query": CALLERS | {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "minReplicas is above"),
        ({"query": CALLERS | {"autoscaling": {"enabled": True}, "resources": NO_CPU}}, "requests.cpu"),
        ({"workerGroups": {"default": {"keda": KEDA | {"minReplicas": 11}}}}, "workerGroups.default.keda"),
        ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
        ({"networkPolicy": {"redisPorts": []}}, "/networkPolicy/redisPorts"),
        ({"settings": {"TOOLSCALE_METRICS_PUBLIC": "true"}}, "invalid propertyName"),
        ({"eventsApi": {"enabled": True}}, "eventsApi.existingSecret"),
        ({"flower": {"enabled": True}}, "flower.existingSecret"),
        ({"workerGroups": {"default": {"keda": {"enabled": True}}}}, "keda.address"),
        ({"workerGroups": {"default": {"queues": ["toolscale"]}}}, "invalid propertyName 'queues'"),
        ({"config": {"existingSecret": "a", "existingConfigMap": "b"}}, "/config"),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_values_that_cannot_be_used_are_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=re.escape(said)):
        rendered(values_of("minimal") | given)


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"existingSecret": "token"}, "TOOLSCALE_EVENTS_TOKEN"),
        ({"producers": {"existingSecret": "producers"}}, "TOOLSCALE_PRODUCERS_FILE"),
    ],
)
def test_the_events_api_has_a_shared_token_or_producers_of_its_own(given: dict[str, Any], variable: str) -> None:
    made = rendered(values_of("minimal") | {"eventsApi": {"enabled": True, **given}})
    (api,) = (it for it in made if it["kind"] == "Deployment" and component(it) == "events-api")

    assert {"TOOLSCALE_EVENTS_TOKEN", "TOOLSCALE_PRODUCERS_FILE"} & environment(api).keys() == {variable}
    mounts = {mount["mountPath"] for mount in container(api)["volumeMounts"]}
    assert ("/etc/toolscale/producers" in mounts) == ("producers" in given)


def test_the_chart_can_be_a_part_of_another_one(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "charts" / "toolscale")
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: platform, version: 0.1.0}", encoding="utf-8")

    with helm.Chart.load(str(tmp_path)) as chart:
        # Helm gives every part the `global` of the whole
        made = chart.render({"toolscale": values_of("minimal")}, name="platform", namespace="tools")

    assert "platform-toolscale-query" in "".join(made.values())


def test_the_schema_leaves_to_its_own_value_what_the_chart_sets_itself() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    refused = set(schema["$defs"]["settings"]["propertyNames"]["not"]["enum"])
    free = {"TOOLSCALE_LOG_LEVEL", "TOOLSCALE_RESYNC_INTERVAL_S", "TOOLSCALE_LISTING_TIMEOUT_S"}
    set_by_us = {
        name for deployment in FULL.values() for name in environment(deployment) if name.startswith("TOOLSCALE_")
    }

    assert set_by_us - refused == free

    settings = {f"TOOLSCALE_{name.upper()}" for name in Settings.model_fields}
    assert refused <= settings | OF_COMMANDS


@pytest.mark.parametrize("release", ["r", "my-toolscale", "a-release-with-a-name-of-fifty-three-characters-in-it"])
def test_objects_of_any_release_have_names_that_kubernetes_takes(release: str) -> None:
    names = [manifest["metadata"]["name"] for manifest in rendered(values_of("full"), release)]

    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in names), names


def test_the_readme_lists_every_value_with_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", (CHART / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    assert {name: json.loads(default) for name, default in rows} == {name: value_at(values, name) for name, _ in rows}
    assert uncovered(values, {name for name, _ in rows}) == []


def value_at(values: dict[str, Any], name: str) -> Any:
    """Return the value at a path with dots; KeyError where there is none."""
    found: Any = values
    for part in name.split("."):
        found = found[part]
    return found


def uncovered(value: Any, listed: set[str], path: str = "") -> list[str]:
    """Return the paths of values that no listed path leads to."""
    if path in listed:
        return []
    if not isinstance(value, dict) or not value:
        return [path]
    inner = cast("Manifest", value)
    return [value for key, below in inner.items() for value in uncovered(below, listed, f"{path}.{key}".lstrip("."))]


def known_settings() -> set[str]:
    """Return the names by which the environment may give a setting."""
    plain = {"REDIS_URL", "QDRANT_URL", "QDRANT_API_KEY", "MCP_RESPONSE_MODE", "MCP_MAX_RESPONSE_TOKENS"}
    return plain | {f"TOOLSCALE_{name.upper()}" for name in Settings.model_fields}


def test_commands_in_every_container_with_servers_ask_the_query_service() -> None:
    given: dict[str, Any] = values_of("minimal") | {"networkPolicy": {"queryFrom": [{"namespaceSelector": {}}]}}
    given["query"] = given["query"] | {"commandToken": {"existingSecret": "commands"}}
    made = rendered(given)
    worker = next(it for it in made if it["kind"] == "Deployment" and component(it).startswith("worker"))
    policies = {it["metadata"]["name"]: it["spec"] for it in made if it["kind"] == "NetworkPolicy"}
    (asked,) = (spec for name, spec in policies.items() if name.endswith("-query"))

    url = environment(worker)["TOOLSCALE_URL"]
    assert re.fullmatch(r"http://[\w-]+-query:8765", url)
    assert environment(worker)["TOOLSCALE_TOKEN"]["secretKeyRef"]["name"] == "commands"
    assert {"podSelector"} <= {key for peer in asked["ingress"][0]["from"] for key in peer}
