"""Every number that a session receives, beside an independent count of what was on the wire.

- `proxy`: an HTTP proxy that records each request and its response
- `upstream`: the tools that each server sends to a client of its own
- `session`: the calls of an agent
- `counting`: tiktoken alone
"""
