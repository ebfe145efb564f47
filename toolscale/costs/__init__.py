"""`toolscale costs`: the tokens that the tools of some servers take, without a catalogue.

- `servers`: the servers of an mcp.json, or of the user's clients
- `counting`: the tokens of definitions, in the wire form and in each profile of the model form
- `listing`: a listing of each server, and its counts
- `view`: the result as a table and as JSON
"""
