"""An example of each command, for `docs/cli.md`."""

from __future__ import annotations

EXAMPLES = {
    "toolscale serve": """
```sh
toolscale serve --config ~/.cursor/mcp.json
```
""",
    "toolscale demo": """
```sh
toolscale demo
```
""",
    "toolscale import": """
```sh
toolscale import --from cursor --apply
```

[importing.md](importing.md) describes the files that it reads and writes.
""",
    "toolscale find": """
```text
$ toolscale find what time is it in Tokyo --limit 3
 tool                   tokens  what it does
 time:get_current_time     187  (timezone: string): Get current time in a specific timezone
 time:convert_time         338  (source_timezone: string, time: string, target_timezone: string):
                                Convert time between timezones
 redis:hset                213  (name: string, key: string, value: any, …): Set a field in a hash
                                stored at key with an optional expiration time.
67 tokens in place of 11,450: 99.41 % saved (cl100k_base)
```

`--json` prints the response of `find_tool`, see [tools.md](tools.md).
""",
    "toolscale ls": """
```text
$ toolscale ls
 server  state   tools  tokens  share  listed   reconcile
 fetch   listed      1     248   2.2%  5 s ago  in 288 s
 git     listed     12   1,415  12.4%  5 s ago  in 260 s
 redis   listed     53   9,001  78.6%  3 s ago  in 247 s
 sqlite  listed      6     261   2.3%  5 s ago  in 293 s
 time    listed      2     525   4.6%  5 s ago  in 238 s
```

`share` is the server's part of all tokens.
""",
    "toolscale show": """
```text
$ toolscale show time
 tool              tokens  share  what it does
 convert_time         338   3.0%  (source_timezone: string, time: string, target_timezone: string):
                                  Convert time between timezones
 get_current_time     187   1.6%  (timezone: string): Get current time in a specific timezone
2 tools, 525 tokens: 4.6% of all
```
""",
    "toolscale resync": """
```sh
toolscale resync time --wait
```
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
ok      model           toolscale/all-MiniLM-L6-v2-int8, 384 dimensions
ok      vocabularies    cl100k_base, o200k_base, heuristic
```

`--audit` reads every server's counts, so it takes longer.
While `toolscale serve` uses the data directory, `--audit` compares nothing: that process audits its servers itself.
""",
    "toolscale dead-letters": """
```sh
toolscale dead-letters --limit 5
```
""",
    "toolscale savings": """
```sh
toolscale savings 7d
```

[tools.md](tools.md) explains its numbers.
""",
    "toolscale emit up": """
```sh
toolscale emit up docs --url http://127.0.0.1:9000/mcp --wait
```

[events.md](events.md) has the contract of events.
""",
    "toolscale emit down": """
```sh
toolscale emit down docs
```
""",
    "toolscale emit changed": """
```sh
toolscale emit changed docs --wait
```
""",
    "toolscale emit event": """
```sh
toolscale emit event event.json
```
""",
    "toolscale token new": """
```sh
toolscale token new agents --groups dev,ops --read-only
```

[security.md](security.md) describes the rights of callers.
""",
    "toolscale toolset create": """
```sh
toolscale toolset create dev git time:get_current_time --budget-tokens 3000 --enforce
```

[operations.md](operations.md#toolsets-and-budgets) has more on toolsets.
""",
    "toolscale toolset show": """
```sh
toolscale toolset show dev
```
""",
    "toolscale toolset list": """
```sh
toolscale toolset list --json
```
""",
    "toolscale toolset delete": """
```sh
toolscale toolset delete dev
```
""",
    "toolscale watch docker": """
```sh
toolscale watch docker --scope laptop
```
""",
    "toolscale watch kubernetes": """
```sh
toolscale watch kubernetes --scope production
```
""",
}
