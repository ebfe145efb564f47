"""Where there is no sandbox there is no tool, and before the first script nothing of it is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
from mcp import Client

from query.catalogue import recorded
from query.mcp import service_of
from query.tools import run_script
from query.tools.registry import builtin_tools
from query.usage.store_sqlite import SqliteUsage
from shared.settings import load_settings
from tests.scripts.site import Site, facts, texts
from tests.support.calling import catalogue_of, upstreams_to
from toolscale.doctor.installation import check_scripts

pytestmark = [pytest.mark.anyio, pytest.mark.process]

LOADED = """
import json, sys
import query.app, query.service, toolscale.commands.serve, query.tools.registry
from tests.support.calling import catalogue_of, upstreams_to
from query.mcp import service_of
service_of(catalogue_of([]), upstreams_to({}))
print(json.dumps([name for name in sys.modules if "monty" in name or name.startswith("query.scripts.")]))
"""


def test_nothing_of_the_sandbox_is_loaded_before_the_first_script() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == []


async def test_a_script_loads_no_interpreter_into_the_service(site: Site) -> None:
    await site.run("1")

    assert "pydantic_monty" not in sys.modules


def _no_package(name: str) -> None: ...


def test_without_its_package_the_tool_is_absent_and_doctor_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_script, "find_spec", _no_package)

    names = [handler.tool.name for handler in builtin_tools(catalogue_of([]), upstreams_to({}))]
    (finding,) = check_scripts(load_settings())

    assert "run_script" not in names
    assert "call_tool" in names
    assert finding.level == "warning"
    assert "pydantic-monty" in finding.found


def test_doctor_names_the_version_of_the_sandbox() -> None:
    (finding,) = check_scripts(load_settings())

    assert finding.level == "ok"


async def test_the_report_states_what_scripts_kept_out_apart_from_the_net(site: Site, tmp_path: Path) -> None:
    with ExitStack() as stack:
        usage = stack.enter_context(closing(SqliteUsage(tmp_path / "savings.sqlite3", 7)))
        with recorded(site.catalogue, usage) as catalogue:
            async with Client(service_of(replace(catalogue), site.upstreams)) as client:
                source = 'r = [await call("files:list", {"n": n}) for n in range(9)]\nlen(r)'
                answer = await client.call_tool("run_script", {"source": source})
        with recorded(site.catalogue, usage) as catalogue:
            async with Client(service_of(replace(catalogue), site.upstreams)) as client:
                report = json.loads(texts(await client.call_tool("get_savings_report", {}))[0])

    totals = report["totals"]
    assert totals["tokens_kept_out"] == facts(answer)["tokens_kept_out"]
    assert totals["inner_tokens"] > totals["tokens_kept_out"] > 0
    parts = totals["baseline_tokens"] - totals["listed_tokens"] - totals["answer_tokens"]
    assert totals["net_tokens_saved"] == parts
    used = {row["name"]: row["calls"] for row in report["by_tool"]}
    assert used["files:list"] == 9
