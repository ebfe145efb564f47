"""Calling a tool on the server that owns it.

- `call`: the main path: the request in any of the forms that agents use, and what goes on to the server
- `tool_lookup`: from the name in a request to a tool
- `arguments`: validation against the tool's input schema, before anything is sent
- `upstreams`: a request to one of the tool's replicas, and to another one after a failure
- `choice`: the order of replicas, from how they answered earlier calls
- `sessions`: one connection per server, kept while it is used
- `connection`: one MCP session with one server; whether a failed call was carried out
- `limits`: calls in flight per caller, and large results in memory
"""
