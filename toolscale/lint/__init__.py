"""`toolscale lint`: the definitions of one server, for its author.

- `findings`: the rules with their ids, and a finding
- `texts`: rules on descriptions of tools and parameters
- `similar`: descriptions that are almost equal, by their vectors
- `sizes`: sizes beyond the percentiles of `corpus.json`, which `python -m benchmarks.definitions` writes
- `shorter`: shorter definitions that accept the same arguments
- `reading`: the listing of a server
- `report`: all findings of a listing, with the tokens of each tool by part
- `view`: the report as tables and as JSON
- `sarif`: the findings as SARIF 2.1.0
"""
