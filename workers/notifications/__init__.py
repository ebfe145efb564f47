"""Hear from the servers themselves that their tools changed, for as long as they run.

One event loop holds a connection with each server that can tell: by `subscriptions/listen` of 2026-07-28, or by the
notifications of earlier revisions. What is heard becomes a server-changed event, as anyone could send it. All of it
may be lost at any time, which costs no more than waiting for the next resync.
"""
