"""The checks of the suite that a conforming server passes alone and not behind a toolset, with a reason for each.

A check is in the list of a scenario if it fails, is left out, or has a warning. The tests fail as soon as one passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.conformance.suite import HANDSHAKE, STATELESS

Checks = Mapping[str, Mapping[str, str]]
"""By revision and scenario, the names of the checks, separated by spaces."""

ASKS_OVER_HTTP = """
A server of 2025-11-25 asks the client in mid-call by a request of its own. Over HTTP, Toolscale has no session with its
clients, so the request has no way and the answer none back. It would take sessions that one replica holds, or a store
of open streams that all replicas read; a client of 2026-07-28 needs neither.
"""
NO_SESSION = """
Optional, and no failure by the suite: Toolscale gives no session id over HTTP, so that any replica answers any request.
Without one, a stream cannot be continued either.
"""
LOGGING = "Logging is deprecated since 2026-07-28; a server's own log is no part of the result of a call."
SUBSCRIBING = "Subscriptions to single resources need a session with the client, and 2026-07-28 has removed them."

LASTING: Mapping[str, Checks] = MappingProxyType(
    {
        ASKS_OVER_HTTP: {
            HANDSHAKE: {
                "tools-call-elicitation": "tools-call-elicitation",
                "tools-call-sampling": "tools-call-sampling",
                "elicitation-sep1034-defaults": "elicitation-sep1034-general elicitation-sep1034-boolean-default"
                " elicitation-sep1034-enum-default elicitation-sep1034-integer-default"
                " elicitation-sep1034-number-default elicitation-sep1034-string-default",
                "elicitation-sep1330-enums": "elicitation-sep1330-general elicitation-sep1330-legacy-enumnames"
                " elicitation-sep1330-titled-multi elicitation-sep1330-titled-single"
                " elicitation-sep1330-untitled-multi elicitation-sep1330-untitled-single",
            }
        },
        NO_SESSION: {
            HANDSHAKE: {
                "server-initialize": "server-session-id-visible-ascii",
                "server-session-lifecycle": "server-session-delete-accepted server-session-initialized-accepted"
                " server-session-terminated-returns-404",
                "server-sse-multiple-streams": "server-accepts-multiple-post-streams"
                " server-sse-multiple-streams-session server-sse-streams-functional",
                "server-sse-polling": "server-sse-disconnect-resume server-sse-polling-session"
                " server-sse-priming-event server-sse-retry-field",
            }
        },
        LOGGING: {
            HANDSHAKE: {
                "logging-set-level": "logging-set-level",
                "tools-call-with-logging": "tools-call-with-logging",
            }
        },
        SUBSCRIBING: {
            HANDSHAKE: {
                "resources-subscribe": "resources-subscribe",
                "resources-unsubscribe": "resources-unsubscribe",
            }
        },
    }
)

PROMPTS_AND_RESOURCES: Checks = {
    revision: {
        "completion-complete": "completion-complete",
        "prompts-list": "prompts-list",
        "prompts-get-simple": "prompts-get-simple",
        "prompts-get-with-args": "prompts-get-with-args",
        "prompts-get-embedded-resource": "prompts-get-embedded-resource",
        "prompts-get-with-image": "prompts-get-with-image",
        "resources-read-text": "resources-read-text",
        "resources-read-binary": "resources-read-binary",
        "resources-templates-read": "resources-templates-read",
    }
    for revision in (HANDSHAKE, STATELESS)
}
CACHED_LISTS: Checks = {
    STATELESS: {"caching": "sep-2549-prompts-list-caching-hints sep-2549-resources-read-caching-hints"}
}
LISTENING: Checks = {
    STATELESS: {
        "server-stateless": "sep-2575-server-sends-subscription-ack sep-2575-server-tags-subscription-id"
        " sep-2575-server-honors-notification-filter sep-2575-server-sends-tools-list-changed-on-subscription"
        " sep-2575-server-sends-prompts-list-changed-on-subscription"
    }
}
INPUT_REQUIRED: Checks = {
    STATELESS: {
        "input-required-result-non-tool-request": "sep-2322-non-tool-incomplete sep-2322-non-tool-complete",
    }
}

TO_COME: Mapping[str, Checks] = MappingProxyType(
    {
        "The prompts and resources of servers are to come.": PROMPTS_AND_RESOURCES,
        "Cache hints are checked on a prompt list and a listed resource, which are to come.": CACHED_LISTS,
        "A client is to hear of a changed toolset.": LISTENING,
        "What a server asks for a prompt is to reach the client, with the prompts of servers.": INPUT_REQUIRED,
    }
)


def reasons(revision: str) -> dict[str, str]:
    """Return the reason for each expected failure of a revision, as `scenario check`."""
    return {
        f"{scenario} {check}": reason
        for reason, checks in {**LASTING, **TO_COME}.items()
        for scenario, names in checks.get(revision, {}).items()
        for check in names.split()
    }
