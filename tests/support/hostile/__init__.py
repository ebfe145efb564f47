"""MCP servers for tests: hostile ones that follow a script, and good ones built with the SDK.

scripted_http(respond)   a real socket on loopback that answers each request as `respond` says
SCRIPTS                  ready-made `respond` functions, by what they do
scripted_stdio(mode)     a target that starts `stdio_server.py` in one of its modes
good_http(kind)          a real process: streamable HTTP in both eras, or sse
callable_stdio()         a target that starts a server whose tools do things, `callable_server.py`
good_stdio()             a target that starts the same server as a child
"""
