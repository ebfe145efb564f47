"""The meaning of every log event, for `docs/telemetry-reference.md`.

A test compares the names with the calls in the code; level and fields come from those calls.
"""

from __future__ import annotations

from collections.abc import Mapping

# Fields of calls that pass a mapping, so that the code does not name them.
FURTHER_FIELDS: Mapping[str, tuple[str, ...]] = {
    "server_indexed": (
        "offered",
        "added",
        "written",
        "removed",
        "rejected",
        "unaccepted",
        "held",
        "meaning",
        "cosmetic",
    ),
}

LOG_EVENTS: Mapping[str, str] = {
    # events and messages
    "event_recorded": "An event was accepted and its intent is durable.",
    "event_refused": "An event broke the contract and became a dead letter.",
    "message_refused": "A queue item was not JSON, no message or an unknown task; it became a dead letter.",
    "dead_letter_lost": "The intent store did not store a dead letter: the message is lost.",
    "enqueue_failed": "An event is recorded, but its message could not be sent; a sweep sends it again.",
    "message_not_sent": "The queue has `limit` messages, so this one was not sent; a sweep sends it later. No worker "
    "runs, or there are too few.",
    # the events API
    "events_api_started": "The events API accepts requests at `url`.",
    "events_api_stopped": "The events API no longer accepts requests.",
    "events_api_failed": "The events API could not start; `kind` is the class of the error.",
    # reconciliation
    "server_indexed": "The index equals the server's list. `written` tools were embedded, `added` of them are new; "
    "`rejected` tools cannot be used. `unaccepted` ones have changed definitions, and the `held` ones of them are not "
    "served. Since the last list, the definitions of `meaning` tools changed, and of `cosmetic` tools only in cosmetic "
    "parts.",
    "invisible_definitions": "The texts of these tools had invisible characters; search and answers have marks in "
    "place of them.",
    "definitions_changed": "A server changed `changed` definitions, or added tools, after its first list; `tools` "
    "names 50 of them. By the `policy`, they are accepted (`open`), served with `changed_since` (`notify`), or held "
    "until `toolscale approve` (`approve`).",
    "server_listing_failed": "A reconciliation failed for the `failures`th time in a row; `error` is a class of "
    "[`shared/errors.py`](../shared/errors.py). The last good tools stay; `status` shows whether search finds them.",
    "stderr_not_stored": "Lines of a stdio server's stderr could not be written to the file for `toolscale logs`.",
    "server_stopped": "A server went down; search and counts leave its tools out.",
    "server_parked": "So many reconciliations in a row never ended: they kill their workers. The server is "
    "quarantined and retried every `TOOLSCALE_RETRY_MAX_S`.",
    "parked_server_retried": "A worker retries a parked server. A worker whose log ends here was killed by it.",
    "lease_lost": "A run paused for so long that its lease expired. It stops, and one more reconciliation follows, "
    "since its last write may be late.",
    "record_unreadable": "A stored server record, toolset or document of definitions that is invalid or of another "
    "version is left out; a reconciliation replaces a record.",
    "intent_unreadable": "An intent cannot be read. The server counts as never announced, and its next event "
    "replaces the intent.",
    # sweep and restore
    "intents_swept": "The sweep sent messages for this many servers. Frequent sweeps without other faults mean lost "
    "messages or too few workers.",
    "sweep_failed": "The intent store, or the broker at a worker's start, did not answer the sweep; the next one "
    "retries.",
    "tools_copied": "The texts of `copied` of the `compared` tools of this server, which has no owner, are those of "
    "servers with an owner; `tools` names ten.",
    "counts_differ": "The sums in a server's record are not those of its tools: `stated` and `counted` are tokens. A "
    "stored count or the record is wrong; all tools of the server are counted again.",
    "intents_restored": "The intent store was empty, as after a wipe of Redis; these servers were restored from the "
    "index. Events without a reconciliation are lost: announce them again.",
    "index_rebuilding": "The index or a collection was missing and was created again; these servers are reconciled.",
    # models and index versions
    "index_unreachable": "At the start of a worker, the events API or the notifications process, no Qdrant server "
    "answered at `QDRANT_URL`; events are recorded, and tools are written when it answers.",
    "index_version_requested": "A worker loaded a model other than the active one and requested its index version.",
    "index_version_request_failed": (
        "The configured model cannot be loaded, or the index is unavailable; the worker retries."
    ),
    "index_version_progressed": "Some seconds of work on the next index version ended; `carried` tools were embedded.",
    "index_version_activated": "The next index version equals the active one and replaced it.",
    "index_version_abandoned": "The model of the next index version can no longer be loaded; a worker that starts "
    "requests it again.",
    "index_version_deleted": "An index version that no process searches was deleted.",
    "index_version_switched": "Another index version is active; its model is loaded, and searches use both.",
    "index_version_unreadable": "The index did not return the active version; searches use the one before.",
    "model_unavailable": "The model of the active index version cannot be loaded: searches use keywords only.",
    "count_failed": "The tokens of a tool could not be counted; search finds the tool, and answers list it as "
    "uncounted.",
    "vocabulary_unusable": "A bundled vocabulary is missing or damaged: there are no counts in this encoding.",
    # sources
    "followed_config_not_stored": "The state of the followed `mcp.json` was not stored, so the page and "
    "`toolscale ls` do not show it.",
    "followed_config_not_read": "The state of the followed `mcp.json` was not read; the page and `/readyz` omit it.",
    "config_entry_skipped": "An entry of the `mcp.json` cannot be used; the other entries are, and an existing server "
    "stays as it was.",
    "config_reconcile_failed": "The `mcp.json` cannot be used, or its servers could not be recorded; its last good "
    "content stays valid. Logged once.",
    "watch_started": "A watcher of Docker or Kubernetes runs.",
    "source_reconciled": "The source's servers differed from the intents; this many events were recorded.",
    "source_reconcile_failed": "The source or the intent store does not answer; the watcher retries and takes down no "
    "server. Logged once.",
    "stream_lost": "The stream of changes ended or could not be opened; the watcher reopens it and lists the source.",
    "server_not_announced": "The labels of `origin` describe no server, or `server` has another owner. Logged once.",
    # notifications
    "notifications_started": "The notifications process runs; `listen` is the kind of servers, `most` their limit.",
    "notifications_failed": "The notifications process could not start; `kind` is the class of the error.",
    "subscription_opened": "A connection for notifications is open.",
    "subscription_closed": "A connection for notifications, or the attempt to open it, ended; it is opened again.",
    "notifications_unsupported": "A server does not support notifications; the resync finds its changes. The process "
    "asks again in about an hour.",
    "subscription_limit_reached": (
        "More servers run than the process may connect to; the resync finds changes of the others."
    ),
    "intents_unreadable": "The intent store does not answer; open connections stay. Logged once.",
    "listener_failed": "An internal error ended the connection to one server; it is opened again in an hour.",
    # ports and metrics
    "metrics_port_opened": "Metrics and readiness of this process are at this port.",
    "metrics_port_failed": "The port for metrics could not be opened; the process works without it.",
    "process_stuck": "The work has stood still for minutes while Redis answers; `/healthz` returns 503.",
    "multiprocess_metrics_disabled": "Reconciliations run in child processes; no process reads their metrics "
    "unless the variable `needed` is set.",
    "ingestion_not_ready": "`/readyz` of `toolscale serve` returned 503; `checks` names the failed checks.",
    "index_not_ready": "`/readyz` returned 503, since the index does not answer.",
    # connections of callers
    "connection_limit_reached": "A listener has `limit` connections; that of `client`, an address with the most, was "
    "closed for a new one. One line a minute; `left_out` counts the others.",
    "files_exhausted": "No file was left for a new connection, which was closed. One line a minute; `left_out` counts "
    "the others.",
    # the query service
    "service_joined": "`toolscale serve --stdio` found a process that holds its data directory, and forwards to it.",
    "stdio_session_failed": "The session of a client over stdio ended with an error; the others go on.",
    "query_service_started": "The service listens at `url`; `authenticated`: callers need tokens.",
    "query_service_stopped": "The service no longer listens.",
    "calls_cut_off": "The service stopped, and `requests` outlasted its grace; they got an error.",
    "query_service_failed": "The service could not start; `kind` is the class of the error.",
    "authentication_failed": "A request from `client` had an invalid token and got 401. At most ten lines a minute; "
    "`left_out` counts refusals without a line.",
    "keys_fetch_failed": "The issuer's keys could not be fetched; known keys are used for an hour, then JWTs get 503.",
    "access_file_not_read": "A file of tokens, keys or rules was edited and cannot be used; its last good content "
    "stays valid, removed tokens included. Logged once for each edit.",
    "page_served": "A page of `/ui` was returned; the line holds no query.",
    "page_failed": "A page could not be rendered, since the index did not answer.",
    "cursor_key_missing": "Redis is set, but `TOOLSCALE_CURSOR_KEY` is not: cursors only work in this process.",
    # tools
    "tools_found": "A `find_tool` request was answered; with 0 ms, the same answer was sent again.",
    "keyword_search_fallback": "The embedding model cannot be loaded; this search used keywords only.",
    "find_failed": "A `find_tool` request got an error result, since the index did not answer.",
    "tools_described": "A `describe_tool` request was answered.",
    "tools_listed": "A page of `list_available_tools` was returned.",
    "tool_called": "A `call_tool` request ended. `outcome` is `ok`, `tool_error` (the tool's error), `cancelled` or "
    "the class of the error that prevented a result. `policy` is the action of the operator's rules: `CallDenied`, "
    "`ConfirmationRequired` (the client asks its user) and `CallNotConfirmed` are outcomes of `deny` and `ask`.",
    "invisible_result": "A result of a server had invisible characters; the answer has marks in place of them.",
    "call_failed_over": "The replica `server` did not answer a call, and another replica is tried; `reason` is its "
    "error. `tool_called` names the server that answered.",
    "call_failed": "A built-in tool raised an unexpected error; the caller gets a general message. With a traceback "
    "and level `error`.",
    "connection_failed": "A connection for calls ended with an unexpected error; calls of this server fail until it "
    "is opened again. With a traceback and level `error`.",
    "response_truncated": "A response exceeded `max_tokens`: it became a `summary`, `name`s or a first `page`. If "
    "frequent, `MCP_MAX_RESPONSE_TOKENS` is too small.",
    "page_not_stored": "The rest of a long result could not be stored; the first page has no cursor and a warning.",
    "cursor_store_unavailable": "Redis did not answer for a cursor; the request got an error result.",
    # toolsets
    "toolset_shown": "A `get_active_toolset` request was answered; `toolset` is null without an active toolset.",
    "toolset_written": "A toolset was created or replaced.",
    "toolset_deleted": "A toolset was deleted.",
    "servers_read_failed": "`GET /servers` failed, since the index or the intents did not answer; the request got 503.",
    "toolset_read_failed": "A toolset could not be read or written, since the index did not answer; the request got "
    "an error result.",
    # savings
    "savings_reported": "A `get_savings_report` request for this many days was answered.",
    "savings_write_failed": "The history did not answer; responses do not depend on it. Logged once.",
    "savings_event_invalid": "A list, an answer or a call could not be counted, and is missing from the history.",
    "savings_dropped": "This many lists, answers and calls are missing from the history: it was slow or down.",
    "savings_baseline_missing": "The index did not answer for the baseline of a `tools/list`; that list claims none.",
    "savings_read_failed": "The history did not answer; a report got an error result, or a page has no figures.",
    "recent_calls_not_read": "The history did not answer for the recent calls, which enforced budgets depend on; "
    "earlier counts stay, or the cheapest tools come first. Logged once.",
    "catalogue_size_not_stored": "The catalogue's size of today could not be read or stored. Logged once.",
    # the demo
    "demo_servers_left_out": "Some servers of the demo could not be installed; the demo runs without them.",
}
