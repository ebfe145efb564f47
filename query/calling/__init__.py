"""Calling a tool on the server that owns it.

- `call`: the main path; which metadata goes on to the server
- `request`: the tool and parameters that a caller sends, in any of the forms that agents use
- `tool_lookup`: from the name in a request to a tool
- `arguments`: validation against the tool's input schema, before anything is sent
- `limits`: calls in flight per caller, and large results in memory
- `upstreams`: the event loop and thread of all connections
- `endpoints`: DNS lookups, in their own threads
- `failover`: another replica after a failure
- `replica_choice`: the order of replicas, and the one that a caller used last
- `breaker`: servers that failed lately, and when to probe them
- `deadlines`: time to connect, and time to answer
- `pool`: one connection per server, kept while it is used
- `connection`: one MCP session with one server
- `delivery`: whether a failed call was carried out
- `upstream_request`: the requests that a connection sends
- `session_state`: the phase of a session, its calls, and its target
- `streams`: the messages of a connection, and the slots for large ones
- `progress`: progress notifications on their way to the caller
"""
