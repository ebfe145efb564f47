"""Lets Toolscale be the suite's client: `python -m tests.conformance.driver URL` lists the suite's server and calls it.

The suite says in the environment which scenario it plays. The agent behind Toolscale is the SDK's client: it answers
questions with their defaults, and else with yes. The person agrees to each sign-in at once: by `toolscale login` until
the server is listed, and at the link that a call of the agent asks to open.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from tests.e2e.test_serve import serving
from tests.support.brisk import TIMES
from tests.support.processes import BRISK
from tests.support.waiting import eventually

SERVER = "suite"
SAMPLES: dict[str, Any] = {"string": "x", "integer": 5, "number": 5, "boolean": True, "object": {}, "array": []}
# The client that the suite expects where an authorization server takes the URL of a document as the id of a client; the
# document of a service of Toolscale has another URL.
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
MACHINE = {
    "client_id": "client_id",
    "client_secret": "client_secret",
    "private_key_pem": "private_key",
    "signing_algorithm": "algorithm",
}
MOST_LOGINS = 2
LISTED_WITHIN_S = 60
# A listing that began before the tokens came may fail after them.
LISTINGS_AFTER_LOGIN = 2
BRISKER = {**BRISK, f"{TIMES}.RETRY_MAX_S": 1.0, "shared.intents.intents.MIN_INTERVAL_S": 0.0}

Call = tuple[str, dict[str, Any]]


def entry(url: str, scenario: str, context: dict[str, Any], credentials: Path) -> dict[str, Any]:
    """Return the entry of the suite's server, as its operator writes it; a machine identity lies in `credentials`."""
    common = {"type": "http", "url": url}
    if scenario.startswith("auth/client-credentials"):
        # the operator knows it, and the suite does not say it
        resource = httpx2.get(url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp"), trust_env=False).json()
        machine = {ours: context[theirs] for theirs, ours in MACHINE.items() if theirs in context}
        (credentials / SERVER).write_text(json.dumps({"issuer": resource["authorization_servers"][0], **machine}))
        return {**common, "auth": {"type": "service", "credential": SERVER}}
    if scenario == "auth/basic-cimd":
        return {**common, "oauth": {"clientId": CLIENT_DOCUMENT}}
    if "client_id" in context:
        return {**common, "oauth": {"clientId": context["client_id"], "clientSecret": context["client_secret"]}}
    return common


def sign_in(service: str) -> None:
    """Sign in by the command until the server is listed; a person gives up after some times."""
    found = listing(service, 1)
    for _ in range(MOST_LOGINS):
        if found["state"] == "listed":
            return
        assert found["state"] == "sign-in", found["last_error"]
        log_in(service)
        found = listing(service, found["failures"] + LISTINGS_AFTER_LOGIN)


def listing(service: str, failures: int) -> dict[str, Any]:
    """Return what Toolscale says of the server, once it is listed or so many listings in a row have failed."""
    found: dict[str, Any] = {}

    def is_decided() -> bool:
        response = httpx2.get(f"{service.removesuffix('/mcp')}/api/servers/{SERVER}", trust_env=False)
        found.update(response.json() if response.is_success else {})
        return bool(found) and (found["state"] == "listed" or found["failures"] >= failures)

    eventually(is_decided, LISTED_WITHIN_S, what="a listing")
    sys.stderr.write(f"{found['state']}: {found['last_error']}\n")
    return found


def log_in(service: str) -> None:
    """Run `toolscale login`, agree in a browser, and paste where it is sent.

    Raises:
        CalledProcessError: the command failed.
    """
    command = [sys.executable, "-m", "toolscale", "login", SERVER, "--no-browser", "--url", service]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as login:
        assert login.stdout
        address = login.stdout.readline().strip()
        login.communicate(redirected(address) if address else None, timeout=60)
    if login.returncode:
        raise subprocess.CalledProcessError(login.returncode, command)


def redirected(address: str) -> str:
    """Return the address on loopback to which the authorization server sends a browser in the end."""
    (goal,) = parse_qs(urlsplit(address).query)["redirect_uri"]
    with httpx2.Client(trust_env=False) as browser:
        while not address.startswith(goal):
            response = browser.get(address)
            address = str(response.url.join(response.headers["location"]))
    return address


async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    if isinstance(params, ElicitRequestURLParams):
        async with httpx2.AsyncClient(trust_env=False, follow_redirects=True, timeout=60) as browser:
            sys.stderr.write((await browser.get(params.url)).text)
        return ElicitResult(action="accept")
    properties: dict[str, Any] = params.requested_schema["properties"]
    return ElicitResult(action="accept", content={name: of.get("default", True) for name, of in properties.items()})


async def play(url: str, scenario: str, context: dict[str, Any]) -> None:
    """List the tools of the suite's server, and make the calls of the scenario."""
    async with Client(url, elicitation_callback=answer) as client:
        listed = await client.call_tool("list_available_tools", {"servers": [SERVER], "detail": "full"})
        page: dict[str, Any] = listed.structured_content or {}
        servers = page["toolsByServer"]
        schemas = {tool["name"]: tool["definition"]["inputSchema"] for of in servers for tool in of["tools"]}
        for name, arguments in calls(scenario, schemas, context):
            called = await client.call_tool("call_tool", {"tool_name": f"{SERVER}:{name}", "parameters": arguments})
            sys.stderr.write(f"{name}: {called.model_dump_json()}\n")


def calls(scenario: str, schemas: dict[str, dict[str, Any]], context: dict[str, Any]) -> Iterator[Call]:
    """Return those that the suite asks for, else one of each tool, in the order of the list."""
    if scenario == "json-schema-2020-12-preservation":
        yield "json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]}
    elif "toolCalls" in context:
        yield from ((call["name"], call["arguments"]) for call in context["toolCalls"])
    else:
        for name, schema in schemas.items():
            properties = schema.get("properties", {})
            yield name, {each: SAMPLES[properties[each].get("type", "string")] for each in schema.get("required", [])}


def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as directory:
        config, credentials = Path(directory) / "mcp.json", Path(directory) / "credentials"
        credentials.mkdir()
        config.write_text(json.dumps({"mcpServers": {SERVER: entry(url, scenario, context, credentials)}}))
        with serving(config, constants=BRISKER, TOOLSCALE_CREDENTIALS_DIR=str(credentials)) as (running, address):
            try:
                if scenario.startswith("auth/"):
                    sign_in(address)
                else:
                    running.wait_for("server_indexed", within_s=20)
                anyio.run(play, address, scenario, context)
            finally:
                sys.stderr.write(running.output())


if __name__ == "__main__":
    main(sys.argv[1])
