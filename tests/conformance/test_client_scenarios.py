"""Toolscale lists and calls the suite's own servers as the client that MCP describes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.marks import with_node
from tests.conformance.suite import HANDSHAKE, STATELESS, Suite

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.index, *with_node(needs_node=True)]

DRIVER = f"{sys.executable} -m tests.conformance.driver"
BOTH = (HANDSHAKE, STATELESS)
FIRST_WITH_SIGN_IN = "2025-03-26"
SCENARIOS = {
    "initialize": (HANDSHAKE,),
    "tools_call": BOTH,
    "elicitation-sep1034-client-defaults": (HANDSHAKE,),
    "sse-retry": (HANDSHAKE,),
    "request-metadata": (STATELESS,),
    "sep-2322-client-request-state": (STATELESS,),
    "http-standard-headers": (STATELESS,),
    "http-custom-headers": (STATELESS,),
    "http-invalid-tool-headers": (STATELESS,),
    "json-schema-ref-no-deref": (STATELESS,),
    "json-schema-2020-12-preservation": BOTH,
}
# All of these revisions, and of the extensions that of machine identities. The others are of DPoP, workload identities
# and identity assertions.
SIGN_IN = {
    **dict.fromkeys(
        (
            "auth/metadata-default",
            "auth/metadata-var1",
            "auth/metadata-var2",
            "auth/metadata-var3",
            "auth/basic-cimd",
            "auth/scope-from-www-authenticate",
            "auth/scope-from-scopes-supported",
            "auth/scope-omitted-when-undefined",
            "auth/scope-step-up",
            "auth/scope-retry-limit",
            "auth/token-endpoint-auth-basic",
            "auth/token-endpoint-auth-post",
            "auth/token-endpoint-auth-none",
            "auth/pre-registration",
        ),
        BOTH,
    ),
    **dict.fromkeys(
        (
            "auth/resource-mismatch",
            "auth/offline-access-scope",
            "auth/offline-access-not-supported",
            "auth/authorization-server-migration",
            "auth/iss-supported",
            "auth/iss-not-advertised",
            "auth/iss-supported-missing",
            "auth/iss-wrong-issuer",
            "auth/iss-unexpected",
            "auth/iss-normalized",
            "auth/metadata-issuer-mismatch",
        ),
        (STATELESS,),
    ),
    **dict.fromkeys(("auth/client-credentials-basic", "auth/client-credentials-jwt"), (HANDSHAKE,)),
    **dict.fromkeys(
        ("auth/2025-03-26-oauth-metadata-backcompat", "auth/2025-03-26-oauth-endpoint-fallback"), (FIRST_WITH_SIGN_IN,)
    ),
}


def cases(scenarios: Mapping[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(scenario, revision) for scenario, revisions in scenarios.items() for revision in revisions]


@pytest.mark.parametrize(("scenario", "revision"), cases(SCENARIOS))
def test_toolscale_passes_a_scenario_as_the_client(suite: Suite, scenario: str, revision: str, tmp_path: Path) -> None:
    failures = suite.client(DRIVER, scenario, revision, tmp_path)

    assert not failures, failures


@pytest.mark.parametrize(("scenario", "revision"), cases(SIGN_IN))
def test_toolscale_signs_in_as_the_client(suite: Suite, scenario: str, revision: str, tmp_path: Path) -> None:
    failures = suite.client(DRIVER, scenario, revision, tmp_path)

    assert not failures, failures
