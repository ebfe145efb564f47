"""The distribution: package names, bundled files of others, lock files, and the wheel."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "shared" / "assets"
PACKAGES = ("shared", "workers", "query", "toolscale")
LOCKS = sorted(path for path in ROOT.glob("**/*.lock") if not {".venv", ".demo"} & set(path.parts))
NPM_LOCKS = [
    ROOT / "toolscale" / "demo" / "package-lock.json",
    *sorted((ROOT / "tests" / "support").glob("*/package-lock.json")),
    *sorted((ROOT / "tests" / "clients" / "environments").glob("*/package-lock.json")),
]
DEPLOYED = ROOT / "deploy" / "requirements.lock"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"

# In pieces, since this file must not name them either.
INDEX_HOSTS = [".".join(parts) for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"))]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_installed_distribution_claims_our_package(package: str) -> None:
    claimed_by = set(importlib.metadata.packages_distributions().get(package, []))

    assert claimed_by <= {"toolscale"}


def test_the_notice_names_every_bundled_file_with_its_digest() -> None:
    noticed = re.findall(r"^ +([0-9a-f]{64})  (\S+)$", (ROOT / "NOTICE").read_text(encoding="utf-8"), re.MULTILINE)
    bundled = {
        (hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(ROOT).as_posix())
        for path in ASSETS.rglob("*")
        if path.is_file()
    }

    assert set(noticed) == bundled


def test_the_licence_is_the_one_that_the_project_declares() -> None:
    assert project()["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").split()[:4] == ["Apache", "License", "Version", "2.0,"]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lock_file_has_a_digest_for_every_package_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pinned = re.findall(r"^[a-z0-9].*(?:\n +--hash.*)*", text, re.MULTILINE)

    assert pinned
    assert [entry for entry in pinned if "--hash=sha256:" not in entry] == []
    assert "://" not in text


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_npm_lock_file_has_a_digest_for_every_package_and_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    packages: dict[str, dict[str, Any]] = json.loads(text)["packages"]

    assert all("integrity" in entry for path, entry in packages.items() if path)
    assert not any("resolved" in entry for entry in packages.values())


def test_lock_files_are_installed_as_they_are() -> None:
    code = (ROOT / "Makefile", DOCKERFILE, *(ROOT / ".github" / "workflows").iterdir())
    modules = (file for package in (*PACKAGES, "benchmarks") for file in (ROOT / package).rglob("*.py"))
    installs = [
        line
        for file in (*code, *modules)
        for line in file.read_text(encoding="utf-8").splitlines()
        if "--require-hashes" in line and "pip-audit" not in line
    ]

    # pip would ask for a pin of each extra as soon as the index has a newer version than the lock file
    assert installs
    assert [line for line in installs if "--no-deps" not in line] == []


def test_the_image_installs_the_versions_that_are_tested() -> None:
    assert versions(DEPLOYED).items() <= versions(ROOT / "requirements.lock").items()


def test_an_image_installs_all_that_its_services_need() -> None:
    extras: dict[str, list[str]] = project()["optional-dependencies"]
    core = required(project()["dependencies"]) | required(extras["otel"])
    (uninstalled,) = re.findall(r"uninstall --yes ((?:[a-z-]+[\s\\]+)+)", DOCKERFILE.read_text(encoding="utf-8"))
    left_out = set(uninstalled.replace("\\", "").split())

    assert core | set[str]().union(*map(required, extras.values())) <= versions(DEPLOYED).keys()
    assert {"docker", "kubernetes", "flower"} <= left_out <= versions(DEPLOYED).keys()
    assert core & left_out == {"qdrant-edge-py"}


def required(lines: list[str]) -> set[str]:
    """Return the names of these requirements."""
    return {canonicalize_name(Requirement(line).name) for line in lines}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_tracked_file_names_the_host_of_a_package_index() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name and not name.startswith("shared/assets/")]

    naming = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in files
        if path.is_file()
        for host in INDEX_HOSTS
        if host.encode() in path.read_bytes()
    ]

    assert naming == []


@pytest.mark.index
def test_the_wheel_that_the_image_makes_holds_every_package_with_its_data(tmp_path: Path) -> None:
    context = image_context(tmp_path / "context")
    builder = ["uv", "build"] if shutil.which("uv") else [sys.executable, "-m", "pip", "wheel", "--no-deps"]
    flags = ["--wheel", "--out-dir"] if builder[0] == "uv" else ["--wheel-dir"]
    subprocess.run([*builder, *flags, str(tmp_path), str(context)], check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (scripts,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))

    data = {path.relative_to(ROOT).as_posix() for path in ASSETS.rglob("*") if path.is_file()}
    data |= {f"toolscale/demo/{name}" for name in ("modern.lock", "legacy.lock", "package-lock.json")}
    data |= {"toolscale/lint/corpus.json"}
    data |= {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "query/web").glob("*/*")
        if path.suffix in (".html", ".css", ".svg")
    }
    assert data <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert "toolscale = toolscale.cli:main" in scripts


def image_context(directory: Path) -> Path:
    """Copy what Docker is given to make the image, and return where it is."""
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    for name in (line[1:] for line in lines if line.startswith("!")):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, directory / name)
    return directory


def project() -> dict[str, Any]:
    document: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return document["project"]


def versions(lock: Path) -> dict[str, frozenset[str]]:
    """Return the pinned versions by package; a package has several where they depend on the Python version."""
    pinned: dict[str, frozenset[str]] = {}
    for name, version in re.findall(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE):
        pinned[name] = pinned.get(name, frozenset()) | {version}
    return pinned
