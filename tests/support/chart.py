"""The Helm chart, rendered by Helm's own engine."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any, cast

import helm_python as helm
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "toolscale"
PORTS = {"worker": 9464, "query": 8765, "events-api": 8766, "flower": 5555}

Manifest = dict[str, Any]


def values_of(name: str) -> dict[str, Any]:
    """Return the values of a file in `ci/`."""
    return cast("dict[str, Any]", yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text(encoding="utf-8")))


def rendered(values: dict[str, Any], release: str = "toolscale") -> list[Manifest]:
    """Return the manifests of a release in the namespace `tools`.

    Raises:
        HelmError: the values do not follow the schema, or cannot go together.
    """
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name=release, namespace="tools")
    documents = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [manifest for text in documents for manifest in yaml.safe_load_all(text) if manifest]


@cache
def _manifests(name: str) -> list[Manifest]:
    return rendered(values_of(name))


def manifests(name: str, *kinds: str) -> list[Manifest]:
    """Return the manifests of these kinds, all without one, that a file in `ci/` makes."""
    return [manifest for manifest in copy.deepcopy(_manifests(name)) if not kinds or manifest["kind"] in kinds]


def component(manifest: Manifest) -> str:
    """Return the name of an object without the release's."""
    return str(manifest["metadata"]["name"]).removeprefix("tools-").removeprefix("toolscale").removeprefix("-")


def deployments(name: str) -> dict[str, Manifest]:
    """Return the Deployments by component."""
    return {component(manifest): manifest for manifest in manifests(name, "Deployment")}


def container(deployment: Manifest) -> dict[str, Any]:
    """Return a Deployment's only container."""
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    return cast("dict[str, Any]", only)


def environment(deployment: Manifest) -> dict[str, Any]:
    """Return a container's variables: texts, or a reference."""
    given = container(deployment)["env"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in given}
