"""Every number of a session beside an independent count of the recorded messages.

- `upstream`: the tools that each server sends to a client of its own
- `session`, `agent`: the calls of several callers
- `proxy`: records each message between the client and the service
- `counting`, `scopes`: tiktoken alone, and the tools that a caller may see
- `answers`, `usage`, `costs`: the numbers of each answer, of each savings report, and of `toolscale costs`
"""
