"""The keys that Toolscale may write fit into the Redis of docker-compose.yml, before its alert fires."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import yaml

from shared.intents.storage import Kind, NoteName
from tests.support.reference.redis_bounds import MIB, bounds

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
COMPOSE = ROOT / "docker-compose.yml"


def test_the_largest_keys_of_a_thousand_servers_do_not_reach_the_alert() -> None:
    command = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]["redis"]["command"]
    limit = command[command.index("--maxmemory") + 1]
    rules = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    (alert,) = (rule["expr"] for rule in rules if rule["alert"] == "ToolscaleRedisFull")

    allowed = float(alert.rpartition("> ")[2]) * int(limit.removesuffix("mb")) * MIB

    assert sum(bound.size_bytes for bound in bounds()) < allowed


def test_every_family_of_keys_in_the_code_has_a_bound() -> None:
    packages = (ROOT / package for package in ("workers", "query", "shared", "toolscale"))
    code = "\n".join(path.read_text(encoding="utf-8") for package in packages for path in package.rglob("*.py"))
    families = {*re.findall(r'f?"toolscale:([a-z-]+)', code), *get_args(Kind), *get_args(NoteName)}

    bounded = {name for bound in bounds() for name in re.findall(r"`toolscale:([a-z-]+)", bound.keys)}

    assert families == bounded
