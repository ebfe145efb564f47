"""The services of docker-compose.yml as processes: their own commands, with the environment that Compose would give."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.ports import free_port
from tests.support.processes import Running
from tests.support.warm import run, start

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
PAGE = ROOT / "docs" / "deploy.md"
OURS = ("worker", "beat", "notifications", "watch-docker", "watch-kubernetes", "events-api", "query", "flower")

Service = dict[str, Any]

MONITOR_PORT = "9464"
_FILLED_IN = re.compile(r"(?<!\$)\$\{(\w+):-([^}]*)\}")
_PORT = re.compile(r"\b(8765|8766|9464|5555)\b")


def services() -> dict[str, Service]:
    """Return the services by name, anchors resolved and variables not yet filled in."""
    document: dict[str, dict[str, Service]] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return document["services"]


SERVICES = services()


def path() -> list[str]:
    """Return the commands that lead a newcomer to a chart: those of the numbered steps."""
    return re.findall(r"^   (docker compose .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def filled_in(text: str, given: Mapping[str, str]) -> str:
    """Return a text as Compose makes it of these variables; an empty one is as good as none."""
    return _FILLED_IN.sub(lambda found: given.get(found[1]) or found[2], text).replace("$$", "$")


def grace_period_s(name: str, given: Mapping[str, str] | None = None) -> float:
    """Return the seconds between SIGTERM and SIGKILL; Compose adds up the parts of `60s35s`."""
    period = filled_in(SERVICES[name]["stop_grace_period"], given or {})
    parts = re.fullmatch(r"(?:[\d.]+s)+", period)
    assert parts, period
    return sum(map(float, re.findall(r"[\d.]+", period)))


@dataclass(frozen=True)
class Composed:
    """Starts services on this machine, which has one address and other ports than the containers.

    `given` holds the variables of `.env`. The services do not inherit this process's environment. A read-only home
    stands for the container's read-only root, and a separate directory for its `/tmp`. As on many machines, Docker
    gives containers a proxy; this proxy never answers.
    """

    directory: Path
    redis_url: str
    qdrant_url: str | None = None
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    ports: dict[str, int] = field(default_factory=dict[str, int])
    started: dict[str, Running] = field(default_factory=dict[str, Running])

    def port(self, name: str, port: str | int) -> int:
        """Return ours for a service's port; only that of metrics is open in several containers."""
        return self.ports.setdefault(f"{name}:{port}" if str(port) == MONITOR_PORT else str(port), free_port())

    def environment(self, name: str) -> dict[str, str]:
        """Return all that the process of a service gets."""
        service = SERVICES[name]
        said = dict(self.given) if "env_file" in service else {}
        said |= {key: filled_in(value, self.given) for key, value in service["environment"].items()}
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/dev/null",
            **dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9"),
            **({} if self.qdrant_url else {"TOOLSCALE_DATA_DIR": str(self.directory / f"{name}-data")}),
            **{key: self.here(name, value) for key, value in said.items()},
        }

    def here(self, name: str, text: str) -> str:
        """Return a text of a service with our addresses, ports and paths in the place of the container's."""
        text = _PORT.sub(lambda found: str(self.port(name, found[1])), text)
        for target, source in self._paths(name).items():
            text = text.replace(target, source)
        for there, ours in self._addresses().items():
            text = text.replace(there, ours)
        return text

    def _paths(self, name: str) -> dict[str, str]:
        own = self.directory / f"{name}-tmp"
        own.mkdir(exist_ok=True)
        mounts = {
            volume["target"]: filled_in(volume["source"], self.given) for volume in SERVICES[name].get("volumes", [])
        }
        return {"/tmp": str(own)} | {target: str((ROOT / source).resolve()) for target, source in mounts.items()}

    def _addresses(self) -> dict[str, str]:
        return {
            filled_in(SERVICES["worker"]["environment"]["REDIS_URL"], self.given): self.redis_url,
            "http://qdrant:6333": self.qdrant_url or "",
            "http://query:": "http://localhost:",
            "host.docker.internal,query": "host.docker.internal,localhost",
            "qdrant,": "127.0.0.1,",
            "0.0.0.0": "127.0.0.1",
        }

    @contextmanager
    def running(self, name: str) -> Generator[Running]:
        """Run a service until the block ends; it must end within the time that Compose would leave it."""
        work = self.directory / f"{name}-work"
        work.mkdir()
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = start(
                self._argv(name, SERVICES[name]["command"]),
                env=self.environment(name), cwd=work, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        running = self.started[name] = Running(process, log)
        try:
            yield running
            process.terminate()
            process.wait(grace_period_s(name, self.given))
            assert list(work.iterdir()) == [], "the container's working directory is read-only"
        finally:
            if process.poll() is None:
                running.kill()

    def is_healthy(self, name: str) -> bool:
        """Return the current result of the service's health check."""
        kind, *check = SERVICES[name]["healthcheck"]["test"]
        return self._done(name, ["sh", "-c", *check] if kind == "CMD-SHELL" else check).returncode == 0

    def execute(self, command: str) -> subprocess.CompletedProcess[str]:
        """Do what `docker compose exec SERVICE COMMAND...` would do."""
        *compose, name, program = shlex.split(command)[:5]
        assert compose == ["docker", "compose", "exec"], command
        return self._done(name, [program, *shlex.split(command)[5:]])

    def _done(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        return run(self._argv(name, command), env=self.environment(name), timeout=120)

    def _argv(self, name: str, command: list[str]) -> list[str]:
        """Return the words that the container's kernel would see, the program by its path."""
        program, *arguments = [self.here(name, filled_in(word, self.given)) for word in command]
        beside = Path(sys.executable).with_name(program)
        return [str(beside) if beside.exists() else program, *arguments]
