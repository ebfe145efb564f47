"""The workflows of CI: their schemas, their actions, and the stores that they start."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = [GITHUB / "workflows" / f"{name}.yml" for name in ("ci", "image", "release")]
SCHEMAS = dict.fromkeys(WORKFLOWS, "vendor.github-workflows") | {GITHUB / "dependabot.yml": "vendor.dependabot"}


@pytest.mark.parametrize(("path", "schema"), SCHEMAS.items(), ids=[path.stem for path in SCHEMAS])
def test_the_file_follows_its_published_schema(path: Path, schema: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)

    assert used
    assert [action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


def test_ci_starts_the_stores_of_the_composition() -> None:
    files = [ROOT / "docker-compose.yml", *WORKFLOWS]
    started = {
        image
        for file in files
        for image in re.findall(r"\b(?:redis|qdrant/qdrant):v?\d+\.[\w.-]+", file.read_text("utf-8"))
    }

    assert len(started) == 2, started


def test_ci_tests_the_declared_versions_of_python() -> None:
    jobs = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    declared = [name.rpartition(" ")[2] for name in classifiers if name.startswith("Programming Language")]

    assert jobs["test"]["strategy"]["matrix"]["python"] == declared
