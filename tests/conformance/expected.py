"""The checks of the suite that a conforming server passes alone and not behind a toolset, with a reason for each.

FAILED has those that fail, or are not made since an earlier one fails. OPTIONAL has those of what MCP leaves to a
server: the suite leaves them out, or warns. The tests fail as soon as one passes.
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
LOGGING = "Logging is deprecated since 2026-07-28; a server's own log is no part of the result of a call."
SUBSCRIBING = "Subscriptions to single resources need a session with the client, and 2026-07-28 has removed them."

FAILED: Mapping[str, Checks] = MappingProxyType(
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

NO_SESSION = """
Toolscale gives no session id over HTTP, so that any replica answers any request. Without one, a stream cannot be
continued either.
"""
SAME_TOOLS = """
The suite's tool publishes a change, and the server's list stays the same. Clients of Toolscale hear when the tools of
their toolset are others: a server that publishes without reason makes no client list its tools again.
"""
PROMPTS_UNWATCHED = "Toolscale does not notice changes of servers' prompts, and declares no `listChanged` for them."

OPTIONAL: Mapping[str, Checks] = MappingProxyType(
    {
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
        SAME_TOOLS: {STATELESS: {"server-stateless": "sep-2575-server-sends-tools-list-changed-on-subscription"}},
        PROMPTS_UNWATCHED: {
            STATELESS: {"server-stateless": "sep-2575-server-sends-prompts-list-changed-on-subscription"}
        },
    }
)


def checks_of(listed: Mapping[str, Checks], revision: str) -> set[str]:
    """Return the checks of a revision in a list, each as `scenario check`."""
    return {
        f"{scenario} {check}"
        for checks in listed.values()
        for scenario, names in checks.get(revision, {}).items()
        for check in names.split()
    }
