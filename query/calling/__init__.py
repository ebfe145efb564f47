"""Calling a tool on the server that owns it.

- `call`: the main path; which metadata goes on to the server
- `request`: the tool and parameters that a caller sends, in any of the forms that agents use
- `tool_lookup`: from the name in a request to a tool
- `arguments`: validation against the tool's input schema, before anything is sent
- `upstreams`: a call on the tool's replicas, and another one after a failure
- `choice`: the order of replicas, from how they answered earlier calls
- `sessions`: one connection per server, kept while it is used
- `connection`: one MCP session with one server; whether a failed call was carried out
- `upstream_request`: the requests that a connection sends
- `streams`: the messages of a connection, and the slots for large ones
- `limits`: calls in flight per caller, and large results in memory
"""
