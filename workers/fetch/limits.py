"""Limits on what one server may send in one listing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one listing.

    `timeout_s` covers connecting and all pages. A child process must send its first message within the longer of
    `timeout_s` and `start_timeout_s`; then `timeout_s` begins. `max_tools` and `max_total_bytes` are over all pages;
    `max_message_bytes` is the size of one response, event or line; a tool over `max_tool_bytes` is rejected. The
    number of JSON values has fixed limits in `shared.upstream.messages`.
    """

    timeout_s: float = 30.0
    start_timeout_s: float = 0.0
    # The largest servers seen offer hundreds of tools in pages of tens, a tool of some KiB; a hostile one has no end.
    max_tools: int = 10_000
    max_pages: int = 1_000
    max_message_bytes: int = 4 << 20
    # tiktoken needs quadratic time for a run of blanks: 60 ms for this size, 1.5 s for 2 MiB
    max_tool_bytes: int = 256 << 10
    max_total_bytes: int = 64 << 20
