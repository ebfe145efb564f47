"""The numbers of each answer beside their recount from the raw tools of the servers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.recount.counting import compact, model_fields, tokens_of
from benchmarks.recount.proxy import Exchange
from benchmarks.recount.rows import Row, Rows
from benchmarks.recount.scopes import Key, Upstream, Visible

DEFAULT = "cl100k_base"
# Shares are rounded to a ten-thousandth, so each may be wrong by half of it.
SHARE_ERROR = 0.00005

_ADVICE = re.compile(r"Without ([^:\n]+):(\S+) you save (\d+) tokens")

Stated = Mapping[str, Any]


def answer_rows(exchange: Exchange, seen: Visible, upstream: Upstream) -> list[Row]:
    """Return the rows of an answer of a tool of ours; an error, or a page of a text, has none."""
    if exchange.result.get("isError") or "structuredContent" not in exchange.result:
        return []
    tool, arguments = exchange.params["name"], exchange.arguments
    if tool not in _CHECKS:
        return []
    (block,) = exchange.result["content"]
    rows = Rows(tool, f"{seen.caller.name} {exchange.path} {compact(arguments)}")
    rows.add("text is the structured content", block["text"] == compact(exchange.result["structuredContent"]), True)
    _CHECKS[tool](_Answer(json.loads(block["text"]), block["text"], arguments, seen, upstream, rows))
    return rows.rows


def share_rows(pages: Iterable[Exchange], answer: str) -> list[Row]:
    """Return whether the shares of the tools on all pages of a listing sum to 1."""
    servers = [server for page in pages for server in page.result["structuredContent"]["toolsByServer"]]
    rows = Rows("list_available_tools", answer)
    _sum_of_shares([tool for server in servers for tool in server["tools"]], rows)
    return rows.rows


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with its arguments, the tools that its caller may see, and the rows to fill."""

    stated: Stated
    text: str
    arguments: Stated
    seen: Visible
    upstream: Upstream
    rows: Rows

    def find(self) -> None:
        metrics, encoding = self.stated["token_metrics"], self.arguments.get("encoding", DEFAULT)
        carried = self.seen.scope - self.seen.offered
        returned = sum(self._returned(tool, encoding) for tool in self.stated["tools"])
        baseline = max(self.upstream.sum(carried, "wire", encoding), returned)
        answer_tokens = tokens_of(self.text, encoding)
        # a further page repeats the question, so it claims nothing more
        claimed = 0 if self.arguments.get("cursor") else self.upstream.sum(carried, "model", encoding)
        recounted = {
            "baseline_tokens": baseline,
            "returned_tokens": returned,
            "tokens_saved": baseline - returned,
            "savings_percentage": round(100 * (baseline - returned) / baseline, 2) if baseline else 0.0,
            "answer_tokens": answer_tokens,
            "net_tokens_saved": claimed - answer_tokens,
            "encoding": encoding,
            "estimated": encoding == "heuristic",
            "uncounted_total": 0,
        }
        for name, value in recounted.items():
            self.rows.add(f"token_metrics.{name}", metrics.get(name, "missing"), value)
        difference = metrics["baseline_tokens"] - metrics["returned_tokens"]
        self.rows.add("token_metrics adds up", metrics["tokens_saved"], difference)
        self.rows.add("tools are of the scope", _keys(self.stated["tools"]) <= self.seen.scope, True)

    def describe(self) -> None:
        for tool in self.stated["tools"]:
            self._returned(tool, self.stated["encoding"])

    def available(self) -> None:
        servers, groups, encoding = self.arguments.get("servers"), self.arguments.get("groups"), self.stated["encoding"]
        of_servers = (key for key in self.seen.scope if servers is None or key[0] in servers)
        listed = self.upstream.in_groups(of_servers, groups)
        total = self.upstream.sum(listed, "model", encoding)
        self._meta(total, self.upstream.sum(self.seen.scope, "model", encoding))
        for server in self.stated["toolsByServer"]:
            name = server["serverName"]
            of_server = [key for key in listed if key[0] == name]
            self._context("server", server["context"], self.upstream.sum(of_server, "model", encoding), total)
            named = {(name, tool) for tool in shlex.split(server.get("names", ""))}
            self.rows.add("tools are of the scope", named | _keys(server.get("tools", ())) <= listed, True)
            self._tools(server.get("tools", ()), encoding, total)

    def toolset(self) -> None:
        if "encoding" not in self.stated:
            return  # no toolset is active
        encoding, shown = self.stated["encoding"], _keys(self.stated["tools"])
        if self.arguments.get("name") in (None, self.seen.toolset):
            self.rows.add("tools are those of the scope", shown == self.seen.scope, True)
        total = self.upstream.sum(shown, "model", encoding)
        self._meta(total, self.upstream.sum(self.seen.possible, "model", encoding))
        self._tools(self.stated["tools"], encoding, total)
        _sum_of_shares(self.stated["tools"], self.rows)
        if "budget" in self.stated:
            self._budget(self.stated["budget"], shown)

    def _budget(self, budget: Stated, shown: frozenset[Key]) -> None:
        encoding = budget["encoding"]
        total = self.upstream.sum(shown, "model", encoding)
        left_out = {tuple(tool["name"].split(":", 1)): tool["tokens"] for tool in self.stated["leftOut"]}
        kept = [key for key in _keys(self.stated["tools"]) if key not in left_out]
        self.rows.add("budget.tokens", budget["tokens"], self.seen.caller.budget_tokens)
        self.rows.add("budget.exceededBy", budget["exceededBy"], max(0, total - budget["tokens"]))
        self.rows.add("budget.used", budget["used"], self.upstream.sum(kept, "model", encoding))
        self.rows.add("tools within the budget are those of tools/list", frozenset(kept) == self.seen.offered, True)
        for (server, name), tokens in left_out.items():
            self.rows.add("leftOut[].tokens", tokens, self.upstream.count((server, name), "model", encoding))
        for server, name, tokens in re.findall(_ADVICE, "\n".join(self.stated["advice"])):
            self.rows.add("advice, in tokens", int(tokens), self.upstream.count((server, name), "model", encoding))

    def _returned(self, tool: Stated, encoding: str) -> int:
        """Return the tokens of a returned tool: of its definition, or of the summary or name in its place."""
        key = _key(tool)
        if "token_count" in tool:
            self.rows.add("tools[].token_count", tool["token_count"], self.upstream.count(key, "wire", encoding))
        if "definition" in tool:
            self._definition(tool["definition"], key)
            return self.upstream.count(key, "wire", encoding)
        if "inputSchema" in tool:
            shown = {"name": key[1]} | {field: tool[field] for field in ("description", "inputSchema") if field in tool}
            self._definition(shown, key)
            return self.upstream.count(key, "wire", encoding)
        return tokens_of(tool.get("summary") or tool["name"], encoding)

    def _tools(self, tools: Iterable[Stated], encoding: str, total: int) -> None:
        for tool in tools:
            key = (tool["serverName"], tool["name"])
            self._context("tool", tool["context"], self.upstream.count(key, "model", encoding), total)
            if "definition" in tool:
                self._definition(tool["definition"], key)

    def _definition(self, shown: Stated, key: Key) -> None:
        raw = self.upstream.tools[key]
        expected = raw if self.arguments.get("detail") == "full" else model_fields(raw)
        self.rows.add("definition, in tokens as shown", tokens_of(shown), tokens_of(expected))

    def _meta(self, total: int, possible: int) -> None:
        meta = self.stated["meta"]
        self.rows.add("meta.context.tokens", meta["context"]["tokens"], total)
        self.rows.add("meta.totalPossibleContext.tokens", meta["totalPossibleContext"]["tokens"], possible)
        self.rows.add("profile", self.stated.get("profile"), "generic")

    def _context(self, subject: str, stated: Stated, tokens: int, total: int) -> None:
        self.rows.add(f"context.tokens of a {subject}", stated["tokens"], tokens)
        self.rows.add(f"context.percentTotal of a {subject}", stated["percentTotal"], round(tokens / total, 4))


_CHECKS: Mapping[str, Callable[[_Answer], None]] = {
    "find_tool": _Answer.find,
    "describe_tool": _Answer.describe,
    "list_available_tools": _Answer.available,
    "get_active_toolset": _Answer.toolset,
}


def _sum_of_shares(tools: Sequence[Stated], rows: Rows) -> None:
    if shares := [tool["context"]["percentTotal"] for tool in tools]:
        rows.add("shares of all tools sum to 1", abs(sum(shares) - 1) <= SHARE_ERROR * len(shares), True)


def _keys(tools: Iterable[Stated]) -> frozenset[Key]:
    return frozenset(_key(tool) for tool in tools)


def _key(tool: Stated) -> Key:
    """Return a tool's server and name, from an answer with qualified names or with both."""
    if "serverName" in tool:
        return tool["serverName"], tool["name"]
    server, _, name = tool["name"].partition(":")
    return server, name
