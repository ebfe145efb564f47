"""The configuration of each client as its user has it, and the servers in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolscale.mcp_clients.clients import Client

Write = Callable[[str, object], Path]
"""Writes a file below the home directory, and returns its path: the fixture `write`."""


@dataclass(frozen=True)
class Fixture:
    """A file of a client below the home directory, its importable servers, and the reasons against the others."""

    path: str
    text: str
    servers: Mapping[str, Mapping[str, Any]]
    skipped: tuple[str, ...] = field(default=())


FIXTURES = {
    Client.CLAUDE: Fixture(
        ".claude.json",
        """{
  "numStartups": 12,
  "mcpServers": {
    "time": {"type": "stdio", "command": "uvx", "args": ["mcp-server-time"], "env": {}},
    "docs": {"type": "http", "url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${DOCS}"}}
  },
  "projects": {}
}
""",
        {
            "time": {"command": "uvx", "args": ["mcp-server-time"]},
            "docs": {
                "type": "http",
                "url": "https://docs.example/mcp",
                "headers": {"Authorization": "Bearer ${DOCS}"},
            },
        },
    ),
    Client.CLAUDE_DESKTOP: Fixture(
        ".config/Claude/claude_desktop_config.json",
        """{
  "globalShortcut": "",
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "@example/files", "/home/ann"], "env": {"LEVEL": "info"}}
  }
}
""",
        {"files": {"command": "npx", "args": ["-y", "@example/files", "/home/ann"], "env": {"LEVEL": "info"}}},
    ),
    Client.CURSOR: Fixture(
        ".cursor/mcp.json",
        '{"mcpServers": {"web": {"url": "https://web.example/mcp"}, "run": {"command": "run", "args": ["${env:A}"]}}}',
        {
            "web": {"type": "http", "url": "https://web.example/mcp"},
            "run": {"command": "run", "args": ["${env:A}"]},
        },
    ),
    Client.VSCODE: Fixture(
        ".config/Code/User/mcp.json",
        """{
	// servers of all workspaces
	"inputs": [{"id": "key", "type": "promptString", "description": "The key"}],
	"servers": {
		"sql": {"type": "stdio", "command": "sql-mcp", "args": ["--stdio",],},
		"asks": {"type": "stdio", "command": "x", "env": {"KEY": "${input:key}"}},
	},
}
""",
        {"sql": {"command": "sql-mcp", "args": ["--stdio"]}},
        (
            "asks: VS Code asks for ${input:key} (The key); add it by hand with ${KEY}, and set that variable where "
            "Toolscale runs",
        ),
    ),
    Client.WINDSURF: Fixture(
        ".codeium/windsurf/mcp_config.json",
        """{
  "mcpServers": {
    "far": {"serverUrl": "https://far.example/mcp", "headers": {"X-Key": "${env:FAR_KEY}"}, "disabledTools": ["a"]},
    "off": {"command": "x", "disabled": true, "disabledTools": []}
  }
}
""",
        {
            "far": {
                "type": "http",
                "url": "https://far.example/mcp",
                "headers": {"X-Key": "${env:FAR_KEY}"},
                "excludeTools": ["a"],
            }
        },
        ("off: it is disabled",),
    ),
    Client.CLINE: Fixture(
        ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        """{
  "mcpServers": {
    "old": {"url": "https://old.example/sse", "autoApprove": [], "timeout": 60},
    "new": {"type": "streamableHttp", "url": "https://new.example/mcp"},
    "run": {"command": "node", "args": ["/srv/run.js"], "disabled": false, "autoApprove": ["a"], "timeout": 1800}
  }
}
""",
        {
            "old": {"type": "sse", "url": "https://old.example/sse", "timeout": 60_000},
            "new": {"type": "http", "url": "https://new.example/mcp"},
            "run": {"command": "node", "args": ["/srv/run.js"], "timeout": 1_800_000},
        },
    ),
    Client.LMSTUDIO: Fixture(
        ".lmstudio/mcp.json",
        '{\n  "mcpServers": {\n    "hub": {\n      "url": "https://hub.example/mcp"\n    }\n  }\n}',
        {"hub": {"type": "http", "url": "https://hub.example/mcp"}},
    ),
    Client.COPILOT: Fixture(
        ".copilot/mcp-config.json",
        """{
  "mcpServers": {
    "local": {"type": "local", "command": "npx", "args": ["@example/local@latest"], "tools": ["*"]},
    "far": {"type": "sse", "url": "https://far.example/sse", "tools": ["a", "b"]}
  }
}
""",
        {
            "local": {"command": "npx", "args": ["@example/local@latest"]},
            "far": {"type": "sse", "url": "https://far.example/sse", "includeTools": ["a", "b"]},
        },
    ),
    Client.GEMINI: Fixture(
        ".gemini/settings.json",
        """{
  "theme": "Default",
  "mcp": {"allowed": ["http", "events", "run", "typed"]},
  "mcpServers": {
    "http": {"httpUrl": "https://a.example/mcp", "headers": {"Authorization": "Bearer $TOKEN"}, "timeout": 5000},
    "events": {"url": "https://b.example/sse", "includeTools": ["a", "b"], "excludeTools": ["b"]},
    "off": {"command": "x"},
    "typed": {"url": "https://c.example/mcp", "type": "http"},
    "run": {"command": "python", "args": ["-m", "run"], "env": {"KEY": "$KEY", "DIR": "${DIR}"}, "trust": false}
  }
}
""",
        {
            "http": {
                "type": "http",
                "url": "https://a.example/mcp",
                "headers": {"Authorization": "Bearer ${TOKEN}"},
                "timeout": 5_000,
            },
            "events": {
                "type": "sse",
                "url": "https://b.example/sse",
                "includeTools": ["a", "b"],
                "excludeTools": ["b"],
            },
            "typed": {"type": "http", "url": "https://c.example/mcp"},
            "run": {"command": "python", "args": ["-m", "run"], "env": {"KEY": "${KEY}", "DIR": "${DIR}"}},
        },
        ("off: it is disabled",),
    ),
    Client.ZED: Fixture(
        ".config/zed/settings.json",
        """// Zed settings
{
  "theme": "One Dark",
  "context_servers": {
    "new": {"source": "custom", "command": "run", "args": ["a"], "env": {}}, // of today
    "old": {"command": {"path": "old-run", "args": ["b"], "env": {"K": "v"}}, "settings": {}},
    "far": {"url": "https://far.example/mcp", "headers": {"X": "y"}},
    "packaged": {"source": "extension", "settings": {"key": "z"}},
    "off": {"command": "x", "enabled": false},
  },
}
""",
        {
            "new": {"command": "run", "args": ["a"]},
            "old": {"command": "old-run", "args": ["b"], "env": {"K": "v"}},
            "far": {"type": "http", "url": "https://far.example/mcp", "headers": {"X": "y"}},
        },
        ("packaged: it is an extension of Zed, which starts it", "off: it is disabled"),
    ),
    Client.CODEX: Fixture(
        ".codex/config.toml",
        """model = "gpt-5"  # the default

[mcp_servers.run]
command = "npx"
args = ["-y", "@example/run"]
env_vars = ["HTTP_KEY"]
disabled_tools = ["a"]
startup_timeout_sec = 20
tool_timeout_sec = 1200

[mcp_servers.run.env]
LEVEL = "debug"

[mcp_servers."far away"]
url = "https://far.example/mcp"
bearer_token_env_var = "FAR_TOKEN"
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Team" = "TEAM" }
enabled_tools = ["b"]

[mcp_servers."far away".tools.b]
approval_mode = "approve"

[mcp_servers.off]
command = "x"
enabled = false

[tui]
notifications = true
""",
        {
            "run": {
                "command": "npx",
                "args": ["-y", "@example/run"],
                "env": {"HTTP_KEY": "${HTTP_KEY}", "LEVEL": "debug"},
                "excludeTools": ["a"],
                "timeout": 1_200_000,
            },
            "far-away": {
                "type": "http",
                "url": "https://far.example/mcp",
                "headers": {"X-Region": "eu", "X-Team": "${TEAM}", "Authorization": "Bearer ${FAR_TOKEN}"},
                "includeTools": ["b"],
            },
        },
        ("off: it is disabled",),
    ),
    Client.CONTINUE: Fixture(
        ".continue/config.yaml",
        """name: Main
version: 1.0.0
mcpServers:
  - name: SQLite
    command: uvx
    args:
      - mcp-server-sqlite
      - --port
      - 80
    env:
      DEBUG: true
  - name: far
    type: streamable-http
    url: https://far.example/mcp
    requestOptions:
      headers:
        X-Key: abc
  - uses: example/hub-block
  - name: keyed
    command: x
    env:
      KEY: ${{ secrets.KEY }}
""",
        {
            "SQLite": {"command": "uvx", "args": ["mcp-server-sqlite", "--port", "80"], "env": {"DEBUG": "true"}},
            "far": {"type": "http", "url": "https://far.example/mcp", "headers": {"X-Key": "abc"}},
        },
        (
            "example/hub-block: it is a block of Continue's hub",
            "keyed: Continue fills in ${{ secrets.KEY }}; add it by hand with ${KEY}, and set that variable where "
            "Toolscale runs",
        ),
    ),
    Client.GOOSE: Fixture(
        ".config/goose/config.yaml",
        """GOOSE_MODEL: some-model
extensions:
  developer:
    bundled: true
    enabled: true
    name: developer
    timeout: 300
    type: builtin
  run:
    available_tools:
    - a
    args:
    - -y
    - '@example/run'
    cmd: npx
    description: ''
    enabled: true
    env_keys:
    - RUN_KEY
    envs:
      PORT: 80
    name: run
    timeout: 300
    type: stdio
  far:
    available_tools: []
    enabled: true
    headers: {}
    type: streamable_http
    uri: https://far.example/mcp
GOOSE_MODE: auto
""",
        {
            "run": {
                "command": "npx",
                "args": ["-y", "@example/run"],
                "env": {"RUN_KEY": "${RUN_KEY}", "PORT": "80"},
                "includeTools": ["a"],
                "timeout": 300_000,
            },
            "far": {"type": "http", "url": "https://far.example/mcp"},
        },
        ("developer: it is part of Goose (builtin)",),
    ),
    Client.OPENCODE: Fixture(
        ".config/opencode/opencode.json",
        """{
  "$schema": "https://opencode.ai/config.json",
  "tools": {"bash": false, "run_delete_*": false, "far_get": true, "hidden*": false},
  "permission": {"edit": "ask", "far_put": "deny"},
  "mcp": {
    "run": {
      "type": "local",
      "command": ["bun", "x", "@example/run"],
      "environment": {"KEY": "{env:RUN_KEY}"},
      "enabled": true
    },
    "far": {"type": "remote", "url": "https://far.example/mcp", "headers": {"X": "y"}, "timeout": {"request": 90000}},
    "hidden": {"type": "local", "command": ["x"]},
    "off": {"type": "local", "command": ["x"], "enabled": false},
    "file": {"type": "remote", "url": "https://x.example", "headers": {"X": "{file:~/.key}"}}
  }
}
""",
        {
            "run": {
                "command": "bun",
                "args": ["x", "@example/run"],
                "env": {"KEY": "${RUN_KEY}"},
                "excludeTools": ["delete_*"],
            },
            "far": {
                "type": "http",
                "url": "https://far.example/mcp",
                "headers": {"X": "y"},
                "excludeTools": ["put"],
                "timeout": 90_000,
            },
        },
        (
            "hidden: its client denies its tools by 'hidden*'",
            "off: it is disabled",
            "file: a value is in a file ({file:~/.key}); write it in `env` or `headers` instead",
        ),
    ),
}
