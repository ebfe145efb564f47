"""The additions of `docs/cli.md` to the help of a command: the output of a run, and further sentences."""

from __future__ import annotations

from toolscale.lint.findings import RULES

_RULES = "\n".join(f"| `{rule}` | {level} | {meaning} |" for rule, (level, meaning) in RULES.items())

NOTES = {
    "toolscale advice": """
Without `--toolset`, every tool may be chosen, within 4,000 tokens. [page.md](page.md#advice) explains the table.
""",
    "toolscale backup": """
[deploy.md](deploy.md#backups) describes the files, and copies of Redis and Qdrant.
""",
    "toolscale import": """
[importing.md](importing.md) describes the files that it reads and writes.
""",
    "toolscale connect": """
[importing.md](importing.md#connecting-the-clients) describes the change.
""",
    "toolscale add": """
A running `toolscale serve` reads the changed file and lists the server.
An entry that is there already changes nothing; another entry of the same name is an error.
""",
    "toolscale remove": """
A running `toolscale serve` hides the tools of the server.
""",
    "toolscale costs": """
```text
$ toolscale costs --config .demo/mcp.json
 server               tools    wire  generic  anthropic  openai
 redis                   53   9,001    7,357      7,357   7,675
 powerpoint              37   8,452    6,804      6,804   7,026
 filesystem              14   2,756    1,649      1,649   1,720
 git                     12   1,415    1,103      1,103   1,163
 everything              13   1,676    1,065      1,065   1,134
 memory                   9   2,285      876        876     922
 sequential-thinking      1     991      859        859     864
 duckduckgo               2     710      651        651     663
 sqlite                   6     266      266        266     297
 time                     2     525      256        256     266
 fetch                    1     248      222        222     227
 total                  150  28,325   21,108     21,108  21,957

Toolscale in their place lists 6 tools: 1,012 tokens against 21,108, 95.2% less
(generic profile, cl100k_base); each search adds its answer.
```

`wire` is the JSON of `tools/list`.
`generic`, `anthropic` and `openai` are the forms that a model API receives, with name, description and input schema.
The servers start as their client starts them, and end after their list; no Redis, index or model is needed.
Without `--config`, the files are the `mcp.json` of `serve`, or else those of your clients, without a project's files.
A server may take 5 minutes to start, since it may download packages first.
""",
    "toolscale lint": f"""
```text
$ toolscale lint --server memory --config .demo/mcp.json
 tool                 tokens  name  description  parameters  rest  largest parameter
 create_relations        132     5           20          76    31  relations (76)
 delete_relations        131     5           10          85    31  relations (85)
 ⋮
 level    tool                           rule                           finding
 warning  create_entities.entities       missing-parameter-description  it has no description
 ⋮
 warning  delete_relations               similar-descriptions           like the description of delete_entities (cosine
                                                                        0.93)
 ⋮
 note     read_graph                     leaner-definition              15 tokens less without $schema (15)

9 tools, 876 tokens (generic profile, cl100k_base): 0 errors, 10 warnings, 12 notes. Sizes are compared with 150 tools
of 11 public servers, measured on 2026-11-25.
```

Each rule has an id, for `--ignore`:

| rule | level | finding |
|---|---|---|
{_RULES}

A size is a note above the 90th percentile of the corpus and a warning above the 99th.
The corpus is the demo's, which is small: see [its sizes](../benchmarks/results/definitions.md).
Descriptions are similar from a cosine of 0.8 on.
`--json` has the tokens of each part of each tool; their sum is the tool's model form (generic profile).

`--leaner` prints definitions whose input schemas accept the same arguments, for the tools of `leaner-definition`.
They lack titles that repeat a name, unused `$defs`, examples and a `$schema` without effect.
They also lack sentences that three tools share: the finding and stderr show them, for the server's `instructions`.
For the demo's servers that saves 2,987 of 21,108 tokens.

In GitHub Actions, the findings become annotations of the file that `--source` names.
The wheel is a file of a release of Toolscale; `OWNER/toolscale` stands for its repository:

```yaml
jobs:
  lint:
    runs-on: ubuntu-latest
    permissions:
      contents: read
      security-events: write
    steps:
      - uses: actions/checkout@v5
      - run: gh release download --repo OWNER/toolscale --pattern 'toolscale-*.whl'
        env:
          GH_TOKEN: ${{{{ github.token }}}}
      - run: pip install toolscale-*.whl .
      - run: toolscale lint --sarif lint.sarif --source my_server/__main__.py -- python -m my_server
      - uses: github/codeql-action/upload-sarif@v4
        if: always()
        with:
          sarif_file: lint.sarif
```
""",
    "toolscale find": """
```text
$ toolscale find what time is it in Tokyo --limit 3
 tool                   wire tokens  what it does
 time:get_current_time          187  (timezone: string): Get current time in a specific timezone
 time:convert_time              338  (source_timezone: string, time: string, target_timezone:
                                     string): Convert time between timezones
 redis:hset                     213  (name: string, key: string, value: any, …): Set a field in a
                                     hash stored at key with an optional expiration time.
67 tokens in place of 11,455: 99.42 % saved (cl100k_base, wire form)
```

`--json` prints the response of `find_tool`, see [tools.md](tools.md).
""",
    "toolscale ls": """
```text
$ toolscale ls
 server  state   tools  tokens  share  listed    reconcile
 fetch   listed      1     222   2.4%  53 s ago  in 2 min
 git     listed     12   1,103  12.0%  55 s ago  in 3 min
 redis   listed     53   7,357  79.9%  53 s ago  in 3 min
 sqlite  listed      6     266   2.9%  55 s ago  in 3 min
 time    listed      2     256   2.8%  55 s ago  in 3 min
5 servers: 5 listed
```

`share` is the server's part of all tokens. [page.md](page.md#servers) explains the states.

Servers with the same declared name and the same definitions are replicas, by their last listings, and share a row:

```text
$ toolscale ls
 server     state                 tools  tokens  share  listed    reconcile
 git        listed                   12   1,103   9.0%  10 s ago  in 4 min
 sqlite     listed                    6     266   2.2%  10 s ago  in 3 min
 time       listed                    2     256   2.1%  10 s ago  in 4 min
 web0 × 11  10 listed, 1 stopped     13  10,650  86.8%  11 s ago  in 3 min
150 tools, 12,275 tokens; without replicas 33 tools, 2,690 tokens
14 servers: 13 listed, 1 stopped; 2 dead letters
```

`tools` counts those of one server, `tokens` those of all.
`listed` is the oldest listing, and `reconcile` the next reconciliation.
`toolscale ls web4` shows each of these servers in its own row, with its state and its problem.
`--json` has `count`, and `replicas` with the state of each.
A server that was never listed has its own row.
""",
    "toolscale logs": """
```text
$ toolscale logs notes
--- started at 2026-01-31T12:00:00Z
cannot open /srv/notes.db
--- ended with exit code 1 at 2026-01-31T12:00:00Z
failing (3): notes: the connection closed; exit code 1; its last words: "cannot open /srv/notes.db"
```

The file holds at least the last 64 KB of a server, over all of its starts.
A server whose program cannot be started has only the failure.
""",
    "toolscale show": """
```text
$ toolscale show time
 tool              tokens  share  what it does
 convert_time         171  66.8%  Convert time between timezones
 get_current_time      85  33.2%  Get current time in a specific timezone
2 tools, 256 tokens: 2.8% of all
```

`share` is the tool's part of its server's tokens.
If the last listing failed, the last lines of the server's stderr and the error follow.
""",
    "toolscale call": """
A parameter that the input schema declares as a text takes the value as it is; any other takes it as JSON.
`--json` prints the whole result of `tools/call`.
A long result ends with a notice; the limit is `MCP_MAX_RESPONSE_TOKENS` of the service.
""",
    "toolscale doctor": """
```text
$ toolscale doctor
ok      settings        embedded, in one process
ok      data directory  /home/ann/.local/share/toolscale
ok      mcp.json        /home/ann/.local/share/toolscale/mcp.json: 5 usable servers
ok      servers         5 announced
ok      index           in /home/ann/.local/share/toolscale, in use by a Toolscale process
ok      query service   ready at http://127.0.0.1:8765
ok      model           toolscale/tools-minilm-l6-v2, 384 dimensions
ok      vocabularies    cl100k_base, o200k_base, heuristic
```

`--audit` reads every server's counts, so it takes longer.
While `toolscale serve` uses the data directory, `--audit` compares nothing: that process audits its servers itself.
""",
    "toolscale savings": """
[tools.md](tools.md) explains its numbers.
""",
    "toolscale emit up": """
[events.md](events.md) has the contract of events.
""",
    "toolscale token new": """
[security.md](security.md) describes the rights of callers.
""",
    "toolscale toolset create": """
[tools.md](tools.md#get_active_toolset) has the rules of toolsets and budgets.
""",
}
