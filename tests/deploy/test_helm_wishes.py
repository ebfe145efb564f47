"""What operators often ask of a chart: the value for each wish, and its place in the manifest."""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import pytest

pytest.importorskip("helm_python", reason="no build of Helm's engine for this machine")

import kubernetes_validate

from tests.support.chart import Manifest, component, rendered, values_of

SECRET = {"secretKeyRef": {"name": "stores", "key": "password"}}
SPREAD = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
PREFERRED = {"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}}
AFFINITY = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [PREFERRED]}}
SPOT = {"key": "spot", "operator": "Exists"}
DIGEST = "sha256:" + "0" * 64
CA_FILE = "/etc/toolscale/ca/ca.crt"

POD = "spec.template.spec"
CONTAINER = f"{POD}.containers.0"
WORKER = "Deployment/worker-default"
QUERY = "Deployment/query"


class Wish(NamedTuple):
    """Values, and the place in a manifest where they have this effect: `name` is the object's kind and component."""

    values: dict[str, Any]
    name: str
    path: str
    expected: Any


WISHES = {
    "a variable of all pods": Wish(
        {"extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]},
        "Deployment/beat",
        f"{CONTAINER}.env.HTTPS_PROXY.value",
        "http://proxy:3128",
    ),
    "a variable of one component, from a Secret": Wish(
        {"query": {"extraEnv": [{"name": "REDIS_PASSWORD", "valueFrom": SECRET}]}},
        QUERY,
        f"{CONTAINER}.env.REDIS_PASSWORD.valueFrom",
        SECRET,
    ),
    "a variable in place of the chart's": Wish(
        {"extraEnv": [{"name": "REDIS_URL", "value": "redis://:$(REDIS_PASSWORD)@redis:6379/0"}]},
        WORKER,
        f"{CONTAINER}.env.REDIS_URL.value",
        "redis://:$(REDIS_PASSWORD)@redis:6379/0",
    ),
    "all keys of a Secret as variables": Wish(
        {
            "extraEnvFrom": [{"secretRef": {"name": "shared"}}],
            "worker": {"extraEnvFrom": [{"secretRef": {"name": "own"}}]},
        },
        WORKER,
        f"{CONTAINER}.envFrom",
        [{"secretRef": {"name": "shared"}}, {"secretRef": {"name": "own"}}],
    ),
    "a volume with programs of stdio servers": Wish(
        {"worker": {"extraVolumes": [{"name": "programs", "persistentVolumeClaim": {"claimName": "programs"}}]}},
        WORKER,
        f"{POD}.volumes.programs.persistentVolumeClaim",
        {"claimName": "programs"},
    ),
    "the mount of that volume": Wish(
        {
            "extraVolumes": [{"name": "programs", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "programs", "mountPath": "/opt/programs"}],
        },
        "Deployment/notifications",
        f"{CONTAINER}.volumeMounts.programs.mountPath",
        "/opt/programs",
    ),
    "authorities of certificates": Wish(
        {"caBundle": {"existingConfigMap": "authorities", "key": "bundle.pem"}},
        QUERY,
        f"{POD}.volumes.ca.configMap",
        {"name": "authorities", "items": [{"key": "bundle.pem", "path": "ca.crt"}]},
    ),
    "authorities from a Secret, for every client": Wish(
        {"caBundle": {"existingSecret": "authorities"}}, WORKER, f"{CONTAINER}.env.SSL_CERT_FILE.value", CA_FILE
    ),
    "affinity": Wish({"affinity": AFFINITY}, QUERY, f"{POD}.affinity", AFFINITY),
    "tolerations of a worker group": Wish(
        {"tolerations": [], "workerGroups": {"default": {"tolerations": [SPOT]}}}, WORKER, f"{POD}.tolerations", [SPOT]
    ),
    "nodes of all pods": Wish(
        {"nodeSelector": {"pool": "tools"}}, "Deployment/beat", f"{POD}.nodeSelector", {"pool": "tools"}
    ),
    "other nodes of one component": Wish(
        {"nodeSelector": {"pool": "tools"}, "query": {"nodeSelector": {"pool": "edge"}}},
        QUERY,
        f"{POD}.nodeSelector",
        {"pool": "edge"},
    ),
    "a priority": Wish({"priorityClassName": "platform"}, WORKER, f"{POD}.priorityClassName", "platform"),
    "pods over zones": Wish(
        {"topologySpreadConstraints": [SPREAD]},
        QUERY,
        f"{POD}.topologySpreadConstraints.0",
        SPREAD
        | {
            "labelSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "toolscale",
                    "app.kubernetes.io/instance": "toolscale",
                    "app.kubernetes.io/component": "query",
                }
            }
        },
    ),
    "an identity of the cloud": Wish(
        {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/tools"}}},
        "ServiceAccount/",
        "metadata.annotations",
        {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/tools"},
    ),
    "an image of one component": Wish(
        {"image": {"digest": DIGEST}, "query": {"image": {"repository": "registry.example.org/query", "tag": "2"}}},
        QUERY,
        f"{CONTAINER}.image",
        "registry.example.org/query:2",
    ),
    "an image by digest": Wish(
        {"worker": {"image": {"digest": DIGEST}}}, WORKER, f"{CONTAINER}.image", f"toolscale@{DIGEST}"
    ),
    "a private registry": Wish(
        {"image": {"pullSecrets": ["registry"]}}, WORKER, f"{POD}.imagePullSecrets", [{"name": "registry"}]
    ),
    "headers of traces from a Secret": Wish(
        {"otelHeaders": {"existingSecret": "tracing"}},
        "Deployment/beat",
        f"{CONTAINER}.env.OTEL_EXPORTER_OTLP_HEADERS.valueFrom.secretKeyRef",
        {"name": "tracing", "key": "OTEL_EXPORTER_OTLP_HEADERS"},
    ),
    "the endpoint of traces": Wish(
        {"settings": {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://traces:4318"}},
        QUERY,
        f"{CONTAINER}.env.OTEL_EXPORTER_OTLP_ENDPOINT.value",
        "https://traces:4318",
    ),
    "no sidecar in one component": Wish(
        {"podAnnotations": {"team": "tools"}, "beat": {"podAnnotations": {"sidecar.istio.io/inject": "false"}}},
        "Deployment/beat",
        "spec.template.metadata.annotations",
        {"team": "tools", "sidecar.istio.io/inject": "false"},
    ),
    "an internal load balancer": Wish(
        {"query": {"service": {"type": "LoadBalancer", "annotations": {"internal": "true"}}}},
        "Service/query",
        "spec.type",
        "LoadBalancer",
    ),
    "replicas by load": Wish(
        {"query": {"autoscaling": {"enabled": True}}},
        "HorizontalPodAutoscaler/query",
        "spec.metrics.0.resource.target.averageUtilization",
        70,
    ),
    "more memory": Wish(
        {"worker": {"resources": {"limits": {"memory": "4Gi"}}}}, WORKER, f"{CONTAINER}.resources.limits.memory", "4Gi"
    ),
}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_a_common_wish_has_a_value_and_its_place_in_the_manifest(wish: Wish) -> None:
    manifests = {name_of(manifest): manifest for manifest in rendered(merged(values_of("minimal"), wish.values))}

    assert at(manifests[wish.name], wish.path) == wish.expected
    kubernetes_validate.validate(manifests[wish.name], "1.37", strict=True)


def test_every_component_has_the_values_of_all_pods_and_its_own_variables_once() -> None:
    everywhere = {"extraEnv": [{"name": "HTTPS_PROXY", "value": "a"}], "priorityClassName": "platform"}
    own = {"extraEnv": [{"name": "HTTPS_PROXY", "value": "b"}]}

    found = [m for m in rendered(merged(values_of("full"), everywhere | {"worker": own})) if m["kind"] == "Deployment"]

    assert len(found) == 8
    for deployment in found:
        names = [variable["name"] for variable in at(deployment, f"{CONTAINER}.env")]
        assert names.count("HTTPS_PROXY") == 1
        is_worker = component(deployment).startswith("worker-")
        assert at(deployment, f"{CONTAINER}.env.HTTPS_PROXY.value") == ("b" if is_worker else "a")
        assert at(deployment, f"{POD}.priorityClassName") == "platform"


def name_of(manifest: Manifest) -> str:
    """Return the kind and the component of an object."""
    return f"{manifest['kind']}/{component(manifest)}"


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return values as Helm merges two files of them."""
    both = {key: merged(values[key], more[key]) for key in values.keys() & more if isinstance(more[key], dict)}
    return values | more | both


def at(manifest: Any, path: str) -> Any:
    """Return the value at a path of keys, positions in lists, and names of their entries."""
    return reduce(_below, path.split("."), manifest)


def _below(value: Any, key: str) -> Any:
    if key.isdigit():
        return value[int(key)]
    return value[key] if hasattr(value, "keys") else next(entry for entry in value if entry["name"] == key)
