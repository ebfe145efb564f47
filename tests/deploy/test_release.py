"""A release: one version everywhere, and the commands of the workflow that a tag starts."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: str = PROJECT["version"]


def command(program: str) -> str:
    """Return the command of the release's packaging that begins with this program."""
    jobs: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))["jobs"]
    (found,) = (step["run"] for step in jobs["package"]["steps"] if step.get("run", "").startswith(program))
    return str(found)


def test_every_file_names_the_version_of_the_package() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/toolscale/Chart.yaml").read_text(encoding="utf-8"))
    named = [
        version
        for path in ("docs/deploy.md", ".github/workflows/image.yml", "docker-compose.yml")
        for version in re.findall(r"\btoolscale:(\d+\.\d+\.\d+)", (ROOT / path).read_text(encoding="utf-8"))
    ]

    assert {chart["version"], chart["appVersion"], *named} == {VERSION}


def test_a_tag_of_another_version_is_refused() -> None:
    def status(tag: str) -> int:
        environ = {"PATH": os.defpath, "GITHUB_REF_NAME": tag}
        return subprocess.run(["bash", "-ec", command("grep")], cwd=ROOT, env=environ, check=False).returncode

    assert (status(f"v{VERSION}"), status("v9.9.9")) == (0, 1)


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [2.0.0]\n\n### Added\n\n- b\n\n## [1.0.0]\n\n- a\n",
        encoding="utf-8",
    )

    subprocess.run(
        ["bash", "-ec", command("awk")], cwd=tmp_path, env={"PATH": os.defpath, "GITHUB_REF_NAME": "v2.0.0"}, check=True
    )

    assert (tmp_path / "notes.md").read_text(encoding="utf-8") == "\n### Added\n\n- b\n\n"
    assert f"## [{VERSION}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
