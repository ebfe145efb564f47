"""`toolscale lint`: the definitions of one server, for its author.

- `findings`: the rules with their ids, and a finding
- `rules`: all findings of a listing, with the tokens of each tool by part
- `view`: the report as tables, as JSON and as SARIF 2.1.0
"""
