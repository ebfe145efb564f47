"""Subscribe to running servers, and reconcile a server when it reports changed tools.

One event loop keeps a connection to each server that sends notifications: `subscriptions/listen` of 2026-07-28, or
the notifications of earlier revisions. A notification becomes a server-changed event, as a producer could send it.
A lost notification costs no more than the wait for the next resync.
"""
