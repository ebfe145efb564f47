"""The wheel in clean environments: alone, with each extra, and by `uvx`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What an installation without extras starts, and the module that needs each extra.
CORE = (
    "query.__main__",
    "workers.app",
    "workers.events_api.__main__",
    "workers.notifications.__main__",
    "toolscale.app",
)
MODULES = {
    "docker": "workers.sources.docker",
    "kubernetes": "workers.sources.kubernetes",
    "flower": "flower.command",
    "otel": "opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.trace",
}

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.index,
    pytest.mark.skipif(not shutil.which("uv"), reason="uv is not installed"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    done(["uv", "build", "--quiet", "--wheel", "--out-dir", str(directory), str(ROOT)], directory)
    (made,) = directory.glob("*.whl")
    return made


@pytest.mark.parametrize("extra", [None, *PROJECT["optional-dependencies"]])
def test_an_installation_has_the_command_and_the_modules_of_its_extra(
    extra: str | None, wheel: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    wanted = f"toolscale[{extra}] @ {wheel.as_uri()}" if extra else f"toolscale @ {wheel.as_uri()}"
    done(["uv", "venv", "--quiet", "--python", sys.executable, str(environment)], tmp_path)
    python = str(environment / "bin" / "python")
    # the versions of the lock file, without its digests
    install = ["uv", "pip", "install", "--quiet", "--no-verify-hashes", "--python", python]
    done([*install, "--constraints", str(ROOT / "requirements.lock"), wanted], tmp_path)

    helped = done([str(environment / "bin" / "toolscale"), "--help"], tmp_path)
    environ = "import os; os.environ['REDIS_URL'] = 'redis://127.0.0.1:1'"  # a worker needs one
    done([python, "-c", f"{environ}; import {MODULES[extra] if extra else ', '.join(CORE)}"], tmp_path)

    assert "Usage: toolscale" in helped


def test_uvx_runs_the_command_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    uvx = ["uvx", "--quiet", "--python", sys.executable, "--from", str(wheel)]

    assert "Usage: toolscale" in done([*uvx, "toolscale", "--help"], tmp_path)


def done(command: list[str], directory: Path) -> str:
    """Run a program outside the checkout, without the environment of the tests, and return its stdout."""
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    ended = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
