"""What a command runs is shown where it fails, and its secrets are nowhere, by whatever path a server repeats them."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from shared.upstream.masking import Mask, masked
from shared.upstream.target import StdioTarget, program_problem, secrets_of
from tests.edges.serving import program, serving
from tests.edges.test_containers import Engine

SECRET = "hunter2-Zq81"

IMAGES = (
    "mcp4server",
    "mcp/time2:1.0.3",
    "ghcr.io/team/server-x86:v1.2-rc.1",
    "localhost:5000/team/tool:2024",
    "registry.example.com:5000/a/b/c9@sha256:" + "0123456789abcdef" * 4,
    "python:3.12-slim@sha256:" + "a1" * 32,
    "docker://quay.io/team/server9:latest",
)
SECRET_OPTIONS = (
    ["-e", f"TOKEN={SECRET}"],
    [f"-eTOKEN={SECRET}"],
    ["--env", f"API_KEY={SECRET}"],
    [f"--env=API_KEY={SECRET}"],
    ["--label", SECRET],
    ["--secret", f"id={SECRET}"],
    ["-ie", f"PASSWORD={SECRET}"],
)
PLAIN_OPTIONS = (["-i"], ["--rm"], ["--init"], ["--privileged"], ["--read-only"], ["-dit"], ["--pull", "always"])
PROGRAMS = (["docker"], ["podman"], ["/usr/bin/nerdctl"], ["docker", "--context", "far9"], ["sudo", "docker", "-D"])
AFTER: tuple[list[str], ...] = (
    [],
    [SECRET],
    ["--token", SECRET],
    [f"--token={SECRET}"],
    ["serve", "--db", f"postgres://u:{SECRET}@db/x"],
)


def shown(target: StdioTarget, text: str) -> str:
    return Mask(secrets_of(target)).text(text)


@given(
    start=st.sampled_from(PROGRAMS),
    options=st.lists(st.sampled_from((*SECRET_OPTIONS, *PLAIN_OPTIONS)), max_size=6),
    name=st.sampled_from(([], ["--name", "only-one9"], ["--name=only-one9"])),
    image=st.sampled_from(IMAGES),
    after=st.sampled_from(AFTER),
)
def test_image_and_name_of_a_container_are_shown_and_no_secret_is(
    start: list[str], options: list[list[str]], name: list[str], image: str, after: list[str]
) -> None:
    words = [*start, "run", *chain.from_iterable(options), *name, image, *after]
    target = StdioTarget(words[0], tuple(words[1:]))

    line = shown(target, f"Unable to find image '{image}'; name \"/only-one9\" is in use; {' '.join(words)}")

    assert image in line
    assert '"/only-one9"' in line
    assert SECRET not in line
    entry = json.dumps(masked({"command": words[0], "args": words[1:]}))
    assert image in entry
    assert SECRET not in entry


@pytest.mark.parametrize(
    "image", [f"user:{SECRET}@registry.example.com/team/img:1", f"https://u:{SECRET}@registry.example.com/img"]
)
def test_a_password_in_the_name_of_an_image_is_masked(image: str) -> None:
    target = StdioTarget("docker", ("run", "-i", "--rm", image))

    assert SECRET not in shown(target, f"invalid reference format: {image}; {SECRET}")
    assert SECRET not in json.dumps(masked({"command": "docker", "args": list(target.args)}))


@pytest.mark.parametrize(
    ("command", "args", "package"),
    [
        ("npx", ["-y", "@scope/server2@1.2.3", SECRET], "@scope/server2@1.2.3"),
        ("uvx", ["--from", "mcp2[cli]==1.0.1", "serve2me", "--key", SECRET], "mcp2[cli]==1.0.1"),
        ("pnpm", ["dlx", "server9x@latest", SECRET], "server9x@latest"),
        ("python3", ["-m", "server2x", SECRET], "server2x"),
        ("npx", ["--silent", "server9x@2.0.0", SECRET], "server9x@2.0.0"),
        ("bunx", ["--bun", "@a/b9@3", f"--token={SECRET}"], "@a/b9@3"),
    ],
)
def test_a_package_is_shown_in_an_error(command: str, args: list[str], package: str) -> None:
    line = shown(StdioTarget(command, tuple(args)), f"404: {package} is not in this registry; {SECRET}")

    assert package in line
    assert SECRET not in line


@pytest.mark.parametrize("flag", ["--some-flag", "-x", "--config", "--unknown2"])
def test_after_an_unknown_option_nothing_is_taken_for_a_package(flag: str) -> None:
    assert SECRET not in shown(StdioTarget("npx", (flag, "server9x@2.0.0", SECRET)), f"failed: {SECRET}")


@pytest.mark.parametrize("name", ["podman", "docker", "nerdctl", "npx", "uvx", "go"])
def test_another_program_is_no_suggestion_for_one_that_is_well_known(tmp_path: Path, name: str) -> None:
    for other in ("pod2man", "procan", "podmand", "docker-compose", "dockerd", "nerdctl2", "npm", "uvx9", "got"):
        (tmp_path / other).touch(mode=0o755)

    problem = program_problem(name, str(tmp_path))

    assert not any(
        other in problem.repair for other in ("pod2man", "procan", "docker-compose", "dockerd", "npm", "got")
    )


@pytest.mark.parametrize(("name", "meant"), [("dokcer", "docker"), ("pyhton3", "python3"), ("python", "python3.12")])
def test_a_near_name_is_still_suggested(tmp_path: Path, name: str, meant: str) -> None:
    (tmp_path / meant).touch(mode=0o755)

    assert meant in program_problem(name, str(tmp_path)).repair


@pytest.mark.process
def test_the_errors_of_an_engine_name_image_and_container(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "bin")
    image = "ghcr.io/team/missing2:1.2"
    secrets = ("-e", f"TOKEN={SECRET}", "--label", SECRET)
    with serving(
        tmp_path,
        {
            "absent": engine.entry("-i", "--rm", *secrets, image=image),
            "twice": engine.entry("-i", "--name", "only-one9", *secrets),
            "again": engine.entry("-i", "--name", "only-one9", *secrets, kind="stays"),
        },
    ) as (running, _):
        running.wait_for("missing2")

        assert f"pull access denied for {image}" in running.output()
        assert SECRET not in running.output()


CANARY = "canary-0123456789"
PATHS = ("results", "errors", "progress", "logs", "stderr", "not-json", "links", "resources")


@pytest.mark.process
def test_a_canary_of_a_stdio_server_is_nowhere(tmp_path: Path) -> None:
    entry = program("canary_server", env={"API_KEY": CANARY})
    with serving(tmp_path, {"canary": entry}) as (running, url):
        running.wait_for('"server_indexed"')

        seen = anyio.run(_all_answers, url)

        assert "***" in seen
        assert CANARY not in seen
        running.stop()
        assert CANARY not in running.output()
    logs = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert "***" in logs
    assert CANARY not in logs


async def _all_answers(url: str) -> str:
    """Return all that a client sees of a server that repeats its credential by every path."""
    heard: list[Any] = []

    async def hear(message: object) -> None:
        heard.append(message)

    async def hear_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with Client(url, message_handler=hear, mode="legacy") as client:
        for path in PATHS:
            arguments: dict[str, Any] = {"tool_name": f"canary:{path}", "parameters": {}}
            heard.append(await client.call_tool("call_tool", arguments, progress_callback=hear_progress))
        heard.append(await client.call_tool("find_tool", {"tool_description": "results of a canary"}))
        heard.append(await client.call_tool("describe_tool", {"tool_name": "canary:results"}))
    return str(heard)


def test_texts_of_any_depth_are_masked() -> None:
    deep = {"a": [{CANARY: [CANARY, {"b": f"x{CANARY}y"}]}], "n": 1}

    assert CANARY not in json.dumps(Mask([CANARY]).value(deep))
    assert Mask([]).value(deep) is deep
