"""The sets of queries, the corpora they are asked in, and what others reached on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# The retriever rebuilt from its source by the authors of the sets; it returns eight tools.
PEER = "mcp-optimizer (StacklokLabs)"


@dataclass(frozen=True, slots=True)
class QuerySet:
    """A set: its file of queries, its corpora, and what is to be reached at which cut-off, in percent.

    `peer` is what PEER reached at 5 and at 10, where that was measured.
    """

    name: str
    queries: str
    corpora: tuple[str, ...]
    at: int
    floor: float | None = None
    aim: float | None = None
    peer: tuple[float, float] | None = None
    in_steps: bool = False

    def corpus_files(self, data: Path) -> list[Path]:
        """Return the files of its corpora."""
        return [data / "corpora" / f"{name}.jsonl" for name in self.corpora]

    def query_file(self, data: Path) -> Path:
        """Return the file of its queries."""
        return data / "queries" / f"{self.queries}.jsonl"


LIVE, FOREIGN = ("livemcp",), ("livemcp", "haystack")

SETS = (
    QuerySet("livemcp_tasks", "livemcp_tasks", LIVE, 10, 54, 61, (37.3, 39.6)),
    QuerySet("livemcp_tasks, in steps", "livemcp_tasks", LIVE, 10, 70, 78, in_steps=True),
    QuerySet("livemcp_agent", "livemcp_agent", LIVE, 5, 90, 95, (84.2, 87.8)),
    QuerySet("toolsieve", "toolsieve", ("toolsieve181",), 5, 88, 93, (88.7, 89.9)),
    QuerySet("mcpproxy_golden", "mcpproxy_golden", ("mcpproxy45",), 5, peer=(95.7, 95.7)),
    QuerySet("mcpbench_single", "mcpbench_single", ("mcpbench",), 10, 78, 85, (52.9, 53.1)),
    QuerySet("mcpzero_task_dev", "mcpzero_task_dev", ("mcpzero",), 5, 93, 96, (89.1, 90.8)),
    QuerySet("mcpzero_agent_dev", "mcpzero_agent_dev", ("mcpzero",), 5),
    QuerySet("livemcp_tasks among foreign tools", "livemcp_tasks", FOREIGN, 8, 28, 36),
    QuerySet("livemcp_tasks among foreign tools, in steps", "livemcp_tasks", FOREIGN, 8, in_steps=True),
    QuerySet("livemcp_agent among foreign tools", "livemcp_agent", FOREIGN, 5),
)
