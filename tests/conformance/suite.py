"""The public conformance suite of MCP, as it is published, and the checks that it made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.errors import Permanent
from toolscale.demo.servers import NodeEnvironment

HANDSHAKE, STATELESS = "2025-11-25", "2026-07-28"

NODE_MAJOR = 22
RUN_S = 180
CLIENT_S = 120

ROOT = Path(__file__).parents[2]
_SUPPORT = ROOT / "tests" / "support"


def _environment(name: str) -> NodeEnvironment:
    return NodeEnvironment(name, _SUPPORT / name / "package.json", _SUPPORT / name / "package-lock.json")


SUITE, NODE = _environment("conformance"), _environment("node")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The checks of a run, each as `scenario check`; one that was made several times passed if it did each time.

    Neither has the notes that the suite makes of what it saw.
    """

    passed: frozenset[str]
    others: dict[str, str]
    """With what the suite says: failures, warnings, and checks that it left out."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The installed suite."""

    program: Path
    path: str
    """The search path, with Node.js."""

    def server(self, url: str, revision: str, directory: Path) -> Outcome:
        """Run all scenarios of a revision for the server at `url`."""
        ended = self._run(directory, "server", "--url", url, "--suite", "all", "--spec-version", revision)
        outcome = outcome_in(directory)
        assert outcome.passed, ended.stdout + ended.stderr
        return outcome

    def client(self, command: str, scenario: str, revision: str, directory: Path) -> str:
        """Run a scenario for the client that this command starts; return what went wrong, empty if it passed.

        The suite adds the URL of its server to the command. A warning is a failure too.
        """
        ended = self._run(
            *(directory, "client", "--command", command, "--scenario", scenario, "--spec-version", revision),
            *("--timeout", str(CLIENT_S * 1000)),
        )
        return ended.stdout + ended.stderr if ended.returncode else ""

    def _run(self, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        ended = subprocess.run(
            [self.program, *arguments, "--output-dir", directory],
            cwd=ROOT,
            env={**os.environ, "PATH": self.path},
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )
        # 1: a check failed, as the files say
        assert ended.returncode in (0, 1), ended.stdout + ended.stderr
        return ended


def install(directory: Path) -> Suite:
    """Install the suite, and Node.js where the machine has none that is new enough.

    Raises:
        Retryable, Permanent: there is no npm, no package index, or no Node.js for this machine.
    """
    SUITE.install(directory)
    path = os.environ["PATH"]
    if _node_major() < NODE_MAJOR:
        NODE.install(directory)
        path = os.pathsep.join((str(NODE.programs(directory)), path))
    return Suite(SUITE.programs(directory) / "conformance", path)


def _node_major() -> int:
    node = shutil.which("node")
    if node is None:
        raise Permanent("Node.js and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    return int(version.removeprefix("v").partition(".")[0])


def outcome_in(directory: Path) -> Outcome:
    """Return the checks that a run wrote into this directory."""
    passed: set[str] = set()
    others: dict[str, str] = {}
    for scenario, checks in _checks_in(directory):
        for check in checks:
            key, status = f"{scenario} {check['id']}", check["status"]
            if status == "SUCCESS":
                passed.add(key)
            elif status != "INFO":
                others[key] = f"{status}: {check.get('errorMessage', '')}"
    return Outcome(frozenset(passed - others.keys()), others)


def _checks_in(directory: Path) -> Iterator[tuple[str, list[dict[str, str]]]]:
    for file in sorted(directory.glob("*/checks.json")):
        # server-SCENARIO-TIME
        scenario = re.sub(r"-\d{4}-\d\d-\d\dT[-\dZ]+$", "", file.parent.name).removeprefix("server-")
        yield scenario, json.loads(file.read_text(encoding="utf-8"))
