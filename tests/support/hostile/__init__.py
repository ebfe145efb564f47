"""MCP servers for tests: hostile ones that follow a script, and good ones built with the SDK.

- `scripted_http(respond)`: a real socket on loopback; `respond` answers each request
- `SCRIPTS`: ready-made `respond` functions by their behaviour
- `scripted_stdio(mode)`: a target that starts `stdio_server.py` in one of its modes
- `good_http(kind)`: a real process: streamable HTTP in both eras, or sse
- `callable_stdio()`: a target that starts `callable_server.py`, whose tools have effects
- `good_stdio()`: a target that starts the server of `good_http` as a child
"""
