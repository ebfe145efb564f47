"""A release: one version everywhere, an image of each target, and a workflow that makes all of it from a tag."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.support.composed import SERVICES, filled_in

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = PROJECT["version"]
RELEASE: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]


def commands(job: str) -> list[str]:
    """Return the commands of a job of the release."""
    return [step["run"] for step in RELEASE[job]["steps"] if "run" in step]


def test_every_file_names_the_version_of_the_package() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/toolscale/Chart.yaml").read_text(encoding="utf-8"))
    named = [
        version
        for path in ("docs/deploy.md", ".github/workflows/image.yml", "docker-compose.yml")
        for version in re.findall(r"\btoolscale:(\d+\.\d+\.\d+)", (ROOT / path).read_text(encoding="utf-8"))
    ]

    assert {chart["version"], chart["appVersion"], *named} == {VERSION}
    assert filled_in(SERVICES["worker"]["image"], {}) == f"toolscale:{VERSION}"


def test_a_tag_of_another_version_is_refused() -> None:
    (check,) = (command for command in commands("package") if command.startswith("grep"))

    def status(tag: str) -> int:
        environ = {"PATH": os.defpath, "GITHUB_REF_NAME": tag}
        return subprocess.run(["bash", "-ec", check], cwd=ROOT, env=environ, check=False).returncode

    assert (status(f"v{VERSION}"), status("v9.9.9")) == (0, 1)


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path: Path) -> None:
    (cut,) = (command for command in commands("package") if command.startswith("awk"))
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [2.0.0]\n\n### Added\n\n- b\n\n## [1.0.0]\n\n- a\n",
        encoding="utf-8",
    )

    subprocess.run(
        ["bash", "-ec", cut], cwd=tmp_path, env={"PATH": os.defpath, "GITHUB_REF_NAME": "v2.0.0"}, check=True
    )

    assert (tmp_path / "notes.md").read_text(encoding="utf-8") == "\n### Added\n\n- b\n\n"
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_an_image_is_made_of_each_target_with_labels_sbom_and_provenance() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    targets = re.findall(r"^FROM base AS (\w+)$", dockerfile, re.MULTILINE)
    (build,) = (command for command in commands("images") if "buildx build" in command)

    assert RELEASE["images"]["strategy"]["matrix"]["target"] == targets == ["services", "all"]
    assert {"--sbom=true", "--provenance=mode=max", "--push"} <= set(build.split())
    labels = re.findall(r"org\.opencontainers\.image\.(\w+)", dockerfile + build)
    assert sorted(labels) == ["description", "licenses", "revision", "source", "title", "version"]


def test_only_the_steps_that_publish_may_write() -> None:
    allowed = {
        name: {key for key, value in job["permissions"].items() if value == "write"} for name, job in RELEASE.items()
    }

    assert allowed == {
        "package": {"contents", "id-token", "attestations"},
        "images": {"packages"},
        "chart": {"packages"},
        "publish": {"contents"},
    }


def test_a_release_is_public_after_its_images_and_its_chart() -> None:
    (create,) = (command for command in commands("package") if "gh release" in command)
    (edit,) = commands("publish")

    assert "--draft" in create.split()
    assert edit.startswith('gh release edit "$GITHUB_REF_NAME" --draft=false')
    assert set(RELEASE["publish"]["needs"]) == RELEASE.keys() - {"package", "publish"} == {"images", "chart"}


def test_ci_tests_the_declared_versions_of_python_and_audits_the_locks() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    declared = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith("Programming Language")]

    assert jobs["test"]["strategy"]["matrix"]["python"] == declared == ["3.11", "3.12", "3.13", "3.14"]
    assert "pip-audit --disable-pip --require-hashes -r requirements.lock" in jobs["audit"]["steps"][-1]["run"]
