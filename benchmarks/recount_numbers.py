"""Each stated number beside its recount, from recorded messages and raw tools: no code of the product."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tiktoken

from benchmarks.recount_messages import Exchange

VOCABULARIES = Path(__file__).parents[1] / "shared" / "assets" / "tiktoken"
DEFAULT = "cl100k_base"
# Shares are rounded to a ten-thousandth, so each may be wrong by half of it.
SHARE_ERROR = 0.00005
BUILT_IN = (
    "find_tool", "describe_tool", "call_tool", "run_script", "list_available_tools", "get_active_toolset",
    "get_savings_report",
)  # fmt: skip
LIST, DIRECT, OTHERS = "tools/list", "direct", "(others)"

Form = Literal["wire", "model"]
Raw = Mapping[str, Any]
Stated = Mapping[str, Any]
Key = tuple[str, str]
"""A server and the name of its tool."""
Value = int | float | str | bool | None

_CHOSEN = re.compile(r"(\d+) tools? of (\d+) tokens had (\d+) of (\d+) calls?")
_REPEATED = re.compile(r"# as the (\d+) calls before")
_DROPPED = re.compile(r"each tools/list has (\d+) tokens less")


# Tokens


def tokens_of(value: object, encoding: str = DEFAULT) -> int:
    """Return the tokens of a text, or of a JSON value as compact text."""
    text = value if isinstance(value, str) else compact(value)
    if encoding == "heuristic":
        return sum(map(_tokens_of_word, text.split()))
    return len(_encoding(encoding).encode(text, disallowed_special=()))


def compact(value: object) -> str:
    """Return a JSON value as its shortest text, with its keys in order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def model_fields(tool: Raw) -> dict[str, Any]:
    """Return the fields that a model API receives."""
    return {key: value for key, value in tool.items() if key in ("name", "description", "inputSchema")}


def tokens_by_form(tools: Iterable[Raw], encoding: str = DEFAULT) -> dict[str, int]:
    """Return the tokens of these raw tools in the wire form and in each profile of the model form."""
    sums: dict[str, int] = dict.fromkeys(("wire", "generic", "anthropic", "openai"), 0)
    for tool in tools:
        fields = model_fields(tool)
        anthropic = {{"inputSchema": "input_schema"}.get(key, key): value for key, value in fields.items()}
        function = {{"inputSchema": "parameters"}.get(key, key): value for key, value in fields.items()}
        sums["wire"] += tokens_of(tool, encoding)
        sums["generic"] += tokens_of(fields, encoding)
        sums["anthropic"] += tokens_of(anthropic, encoding)
        sums["openai"] += tokens_of({"type": "function", "function": function}, encoding)
    return sums


@functools.cache
def _encoding(name: str) -> tiktoken.Encoding:
    os.environ["TIKTOKEN_CACHE_DIR"] = str(VOCABULARIES)
    return tiktoken.get_encoding(name)


def _tokens_of_word(word: str) -> int:
    """Return 1 for at most 3 characters, a fifth of 4 to 7, a quarter of more, rounded up."""
    if len(word) <= 3:
        return 1
    return math.ceil(len(word) / 5) if len(word) <= 7 else math.ceil(len(word) / 4)


# The tools that a caller may see


class Upstream:
    """All raw tools of the servers, and the groups of each server."""

    def __init__(self, tools: Mapping[str, Iterable[dict[str, Any]]], groups: Mapping[str, Iterable[str]]) -> None:
        self.tools: dict[Key, dict[str, Any]] = {
            (server, tool["name"]): tool for server, listed in tools.items() for tool in listed
        }
        self.groups = {server: frozenset(names) for server, names in groups.items()}
        self.count = functools.cache(self._count)

    def sum(self, keys: Iterable[Key], form: Form, encoding: str) -> int:
        """Return the tokens of these tools."""
        return sum(self.count(key, form, encoding) for key in keys)

    def of_server(self, server: str) -> frozenset[Key]:
        """Return the tools of a server."""
        return frozenset(key for key in self.tools if key[0] == server)

    def in_groups(self, keys: Iterable[Key], groups: Iterable[str] | None) -> frozenset[Key]:
        """Return the tools of servers with one of these groups; None admits all."""
        wanted = None if groups is None else frozenset(groups)
        return frozenset(key for key in keys if wanted is None or wanted & self.groups.get(key[0], frozenset()))

    def _count(self, key: Key, form: Form, encoding: str) -> int:
        server, tool = key[0], self.tools[key]
        if encoding == "heuristic":  # it reads the qualified name, the description and the input schema
            schema = compact(tool["inputSchema"]) if "inputSchema" in tool else ""
            return tokens_of(f"{server}:{tool['name']} {tool.get('description') or ''} {schema}", encoding)
        return tokens_of(tool if form == "wire" else model_fields(tool), encoding)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller of the session; `toolset` is the one of its token. Its budget is enforced."""

    name: str
    token: str
    groups: tuple[str, ...] | None = None
    toolset: str | None = None
    budget_tokens: int | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Visible:
    """The tools of a caller on a path.

    `possible` has the tools without the limit of a toolset, and `listed` the names in `tools/list`.
    """

    caller: Caller
    toolset: str | None
    scope: frozenset[Key]
    possible: frozenset[Key]
    listed: frozenset[str]

    @property
    def offered(self) -> frozenset[Key]:
        """Return the tools of the toolset in `tools/list`."""
        offered = frozenset(key for key in self.scope if "__".join(key) in self.listed)
        return offered if self.toolset else frozenset()


@dataclass(frozen=True, slots=True)
class Seen:
    """A message with the tools that its caller may see."""

    exchange: Exchange
    visible: Visible

    @property
    def is_first_page(self) -> bool:
        """Return whether it is no further page of a list or of an answer."""
        return not (self.exchange.params.get("cursor") or self.exchange.arguments.get("cursor"))

    @property
    def has_failed(self) -> bool:
        """Return whether the response is an error."""
        return "error" in self.exchange.response or bool(self.exchange.result.get("isError"))

    @property
    def texts(self) -> list[str]:
        """Return the texts of the answer."""
        return [block["text"] for block in self.exchange.result.get("content", ()) if block["type"] == "text"]

    @property
    def tool(self) -> str:
        """Return `tools/list`, the built-in tool that answered, or `direct`."""
        if self.exchange.method == LIST:
            return LIST
        name = self.exchange.params["name"]
        return name if name in BUILT_IN else DIRECT


def with_sight(
    exchanges: Sequence[Exchange],
    callers: Iterable[Caller],
    toolsets: Mapping[str, Iterable[str]],
    upstream: Upstream,
) -> list[Seen]:
    """Return the lists and calls with what their callers see; a list offers its tools to all messages of its path."""
    by_token = {caller.token: caller for caller in callers}
    used = [exchange for exchange in exchanges if exchange.method in (LIST, "tools/call")]
    sights: dict[tuple[str, str], Visible] = {}
    for token, path in {(exchange.caller, exchange.path) for exchange in used}:
        caller = by_token[token]
        toolset = caller.toolset or path.removeprefix("/mcp").strip("/") or None
        possible = upstream.in_groups(upstream.tools, caller.groups)
        entries = set(toolsets.get(toolset, ())) if toolset else set[str]()
        within = frozenset(key for key in possible if key[0] in entries or ":".join(key) in entries)
        own = [exchange for exchange in used if (exchange.caller, exchange.path) == (token, path)]
        listed = frozenset(tool["name"] for exchange in own for tool in exchange.result.get("tools", ()))
        sights[token, path] = Visible(caller, toolset, within if toolset else possible, possible, listed)
    return [Seen(exchange, sights[exchange.caller, exchange.path]) for exchange in used]


def in_pages(seen: Iterable[Seen], tool: str) -> list[list[Seen]]:
    """Return the answers of a tool, each as its pages: those of the same arguments, from one without a cursor on."""
    answers: list[list[Seen]] = []
    latest: dict[str, list[Seen]] = {}
    for each in (each for each in seen if each.tool == tool):
        asked = {name: value for name, value in each.exchange.arguments.items() if name != "cursor"}
        question = f"{each.exchange.caller} {each.exchange.path} {compact(asked)}"
        if each.is_first_page:
            answers.append([])
            latest[question] = answers[-1]
        latest[question].append(each)
    return answers


# Rows


@dataclass(frozen=True, slots=True)
class Row:
    """A stated number and its recount; `number` names it, and `answer` the answer that states it."""

    number: str
    answer: str
    stated: Value
    recounted: Value

    @property
    def is_equal(self) -> bool:
        """Return whether both are the same value."""
        return self.stated == self.recounted


class Rows(list[Row]):
    """The rows of one answer."""

    def __init__(self, prefix: str, answer: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._answer = answer

    def add(self, number: str, stated: Value, recounted: Value) -> None:
        """Add a number."""
        self.append(Row(f"{self._prefix} {number}", self._answer, stated, recounted))


def without_digest(tool: Raw) -> Raw:
    """Return a tool of Toolscale's `tools/list` without the digest of the catalogue, which a command cannot know."""
    return {**tool, "description": str(tool["description"]).partition(" Servers: ")[0]}


def command_rows(
    costs: Stated, servers: Sequence[Stated], own: Sequence[Raw], upstream: Upstream, unasked: Upstream
) -> list[Row]:
    """Return the rows of `toolscale costs` and `toolscale ls`; `own` are the tools of Toolscale's `tools/list`.

    `unasked` has the tools of a client that cannot be asked, as `costs` is one.
    """
    rows, encoding = Rows("costs", "toolscale costs"), costs["encoding"]
    tools = list(unasked.tools.values())
    subjects = [("total", costs["total"], tools), ("toolscale", costs["toolscale"], own)]
    for server in costs["servers"]:
        of_server = [tool for (name, _), tool in unasked.tools.items() if name == server["server_id"]]
        subjects.append(("servers[]", server, of_server))
    for subject, stated, raw in subjects:
        rows.add(f"{subject}.tools", stated["tools"], len(raw))
        for form, tokens in tokens_by_form(raw, encoding).items():
            rows.add(f"{subject}.tokens.{form}", stated["tokens"][form], tokens)
    listed, total = Rows("ls", "toolscale ls"), upstream.sum(upstream.tools, "model", DEFAULT)
    for stated in servers:
        keys = upstream.of_server(stated["server_id"])
        tokens = upstream.sum(keys, "model", DEFAULT)
        listed.add("tools", stated["tools"], len(keys))
        listed.add("tokens", stated["tokens"], tokens)
        listed.add("share", stated["share"], round(tokens / total, 4))
    return [*rows, *listed]


# Answers


def answer_rows(seen: Seen, upstream: Upstream) -> list[Row]:
    """Return the rows of an answer of a tool of ours; an error, or a page of a text, has none."""
    exchange, check = seen.exchange, _CHECKS.get(seen.tool)
    if check is None or seen.has_failed or "structuredContent" not in exchange.result:
        return []
    (text,) = seen.texts
    rows = Rows(seen.tool, f"{seen.visible.caller.name} {exchange.path} {compact(exchange.arguments)}")
    rows.add("text is the structured content", text == compact(exchange.result["structuredContent"]), True)
    check(_Answer(json.loads(text), text, exchange.arguments, seen.visible, upstream, rows))
    return rows


def share_rows(seen: Sequence[Seen]) -> Iterator[Row]:
    """Yield whether the shares of all tools sum to 1, on the pages of each listing that shows all its tools."""
    for pages in in_pages(seen, "list_available_tools"):
        parsed = [results for page in pages if (results := page.exchange.result.get("structuredContent"))]
        servers = [server for page in parsed for server in page["toolsByServer"]]
        if servers and "nextCursor" not in parsed[-1] and all("tools" in server for server in servers):
            first = pages[0].exchange
            rows = Rows("list_available_tools", f"{first.path} {first.arguments}")
            _sum_of_shares([tool for server in servers for tool in server["tools"]], rows)
            yield from rows


def advice_rows(seen: Seen, before: Iterable[Seen], upstream: Upstream) -> list[Row]:
    """Return the rows of the advice on a toolset, where its called tools fit within the budget.

    `before` are the messages of the callers whose calls it covers.
    """
    sight, rows = seen.visible, Rows("get_active_toolset", f"{seen.visible.caller.name} {seen.exchange.path}")
    advice = " ".join(json.loads(seen.texts[0]).get("advice", ()))
    keys = (_called(each) for each in before if each.is_first_page)
    calls = [key for key in keys if key and key in sight.scope]
    called = set(calls)
    if chosen := _CHOSEN.search(advice):
        tools, tokens, covered, all_calls = map(int, chosen.groups())
        rows.add("advice, tools", tools, len(called))
        rows.add("advice, tokens", tokens, upstream.sum(called, "model", DEFAULT))
        rows.add("advice, calls covered", covered, len(calls))
        rows.add("advice, calls", all_calls, len(calls))
    if dropped := _DROPPED.search(advice):
        rows.add("advice, tokens less", int(dropped[1]), upstream.sum(sight.offered - called, "model", DEFAULT))
    return rows


def _sum_of_shares(tools: Sequence[Stated], rows: Rows) -> None:
    if shares := [tool["context"]["percentTotal"] for tool in tools]:
        rows.add("shares of all tools sum to 1", abs(sum(shares) - 1) <= SHARE_ERROR * len(shares), True)


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
        recounted: dict[str, Value] = {
            "baseline_tokens": baseline,
            "returned_tokens": returned,
            "tokens_saved": baseline - returned,
            "savings_percentage": round(100 * (baseline - returned) / baseline, 2) if baseline else 0.0,
            "answer_tokens": answer_tokens,
            "net_tokens_saved": claimed - answer_tokens,
        }
        for name, value in recounted.items():
            self.rows.add(f"token_metrics.{name}", metrics.get(name, "missing"), value)
        self.rows.add("token_metrics.encoding", metrics.get("encoding", DEFAULT), encoding)
        self.rows.add("token_metrics.estimated", metrics.get("estimated", False), encoding == "heuristic")
        self.rows.add("token_metrics.uncounted_total", metrics.get("uncounted_total", 0), 0)
        difference = metrics["baseline_tokens"] - metrics["returned_tokens"]
        self.rows.add("token_metrics adds up", metrics["tokens_saved"], difference)
        self.rows.add("tools are of the scope", _keys(self.stated["tools"]) <= self.seen.scope, True)

    def describe(self) -> None:
        for tool in self.stated["tools"]:
            self._returned(tool, self.stated.get("encoding", DEFAULT))

    def available(self) -> None:
        servers, groups, encoding = (self.arguments.get(name) for name in ("servers", "groups", "encoding"))
        encoding = encoding or DEFAULT
        of_servers = (key for key in self.seen.scope if servers is None or key[0] in servers)
        listed = self.upstream.in_groups(of_servers, groups)
        total = self.upstream.sum(listed, "model", encoding)
        self._meta(total, self.upstream.sum(self.seen.scope, "model", encoding))
        for server in self.stated["toolsByServer"]:
            name = server["serverName"]
            of_server = listed & self.upstream.of_server(name)
            self._context("server", server["context"], self.upstream.sum(of_server, "model", encoding), total)
            named = {(name, tool) for tool in shlex.split(server.get("names", ""))}
            self.rows.add("tools are of the scope", named | _keys(server.get("tools", ())) <= listed, True)
            self._tools(server.get("tools", ()), encoding, total)

    def toolset(self) -> None:
        if "profile" not in self.stated:
            return  # no toolset is active
        encoding, shown = self.stated.get("encoding", DEFAULT), _keys(self.stated["tools"])
        if self.arguments.get("name") in (None, self.seen.toolset):
            self.rows.add("tools are those of the scope", shown == self.seen.scope, True)
        total = self.upstream.sum(shown, "model", encoding)
        self._meta(total, self.upstream.sum(self.seen.possible, "model", encoding))
        self._tools(self.stated["tools"], encoding, total)
        _sum_of_shares(self.stated["tools"], self.rows)
        if "budget" in self.stated:
            self._budget(self.stated["budget"], shown)

    def _budget(self, budget: Stated, shown: frozenset[Key]) -> None:
        encoding = budget.get("encoding", DEFAULT)
        total = self.upstream.sum(shown, "model", encoding)
        left_out = {_key(tool): tool["tokens"] for tool in self.stated.get("leftOut", ())}
        kept = shown - left_out.keys()
        self.rows.add("budget.tokens", budget["tokens"], self.seen.caller.budget_tokens)
        self.rows.add("budget.exceededBy", budget["exceededBy"], max(0, total - budget["tokens"]))
        self.rows.add("budget.used", budget["used"], self.upstream.sum(kept, "model", encoding))
        self.rows.add("tools within the budget are those of tools/list", kept == self.seen.offered, True)
        for key, tokens in left_out.items():
            self.rows.add("leftOut[].tokens", tokens, self.upstream.count(key, "model", encoding))

    def _returned(self, tool: Stated, encoding: str) -> int:
        """Return the tokens of a returned tool: of its definition, or of the summary or name in its place."""
        key = _key(tool)
        if "token_count" in tool:
            self.rows.add("tools[].token_count", tool["token_count"], self.upstream.count(key, "wire", encoding))
        if "definition" not in tool and "inputSchema" not in tool:
            return tokens_of(tool.get("summary") or tool["name"], encoding)
        inline = {"name": key[1]} | {field: tool[field] for field in ("description", "inputSchema") if field in tool}
        self._definition(tool.get("definition", inline), key)
        return self.upstream.count(key, "wire", encoding)

    def _tools(self, tools: Iterable[Stated], encoding: str, total: int) -> None:
        for tool in tools:
            self._context("tool", tool["context"], self.upstream.count(_key(tool), "model", encoding), total)
            if "definition" in tool:
                self._definition(tool["definition"], _key(tool))

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


def _keys(tools: Iterable[Stated]) -> frozenset[Key]:
    return frozenset(map(_key, tools))


def _key(tool: Stated) -> Key:
    """Return a tool's server and name, from an answer with qualified names or with both."""
    if "serverName" in tool:
        return tool["serverName"], tool["name"]
    server, _, name = tool["name"].partition(":")
    return server, name


# Savings reports


def report_rows(stated: Stated, before: Sequence[Seen], upstream: Upstream, answer: str) -> list[Row]:
    """Return the rows of a report; `before` are the messages that it covers, of the callers that it covers."""
    rows = Rows("report", answer)
    parts = ("by_day", "own_tools", "by_tool", "by_server")
    stated = {**stated, **{part: [Counter(row) for row in stated.get(part, ())] for part in parts}}  # missing: 0
    used = [seen for seen in before if seen.exchange.result]
    totals = Counter[str]()
    for name in dict.fromkeys(seen.visible.caller.name for seen in used):
        totals.update(_totals([seen for seen in used if seen.visible.caller.name == name], upstream))
    tools, used_tokens = totals.pop("baseline_tools"), totals.pop("used_tokens")
    for number, value in sorted(totals.items()):
        rows.add(f"totals.{number}", stated["totals"].get(number, "missing"), value)
    rows.add("by_day adds up", sum(day["net_tokens_saved"] for day in stated["by_day"]), totals["net_tokens_saved"])
    rows.add("profile", stated.get("profile"), "generic")
    share = totals["contexts"] * totals["baseline_tokens"]
    break_even = math.ceil(used_tokens * tools / share) if share else None
    rows.add("break_even_tools", stated.get("break_even_tools"), break_even)
    _own_tools(stated, used, rows)
    _shown_tools(stated, used, rows)
    _calls(stated, before, rows)
    return rows


def _totals(used: Sequence[Seen], upstream: Upstream) -> Counter[str]:
    """Return the sums of one caller's messages."""
    lists = [seen for seen in used if seen.tool == LIST]
    answers = [seen for seen in used if seen.tool != LIST]
    first = [seen.visible.scope for seen in lists if seen.is_first_page]
    contexts = min(len(first), len(answers))
    listed, written = sum(map(_listed_tokens, lists)), sum(map(_own_tokens, answers))
    baseline, tools, carried = (
        number * contexts // len(first) if first else 0
        for number in (sum(upstream.sum(keys, "model", DEFAULT) for keys in first), sum(map(len, first)), listed)
    )
    searches = [json.loads(seen.texts[0]) for seen in answers if seen.tool == "find_tool" and _is_new(seen)]
    scripts = scripts_with_calls(used)
    return Counter(
        net_tokens_saved=baseline - listed - written,
        baseline_tokens=baseline,
        baseline_tools=tools,
        listed_tokens=listed,
        answer_tokens=written,
        used_tokens=carried + written if contexts else 0,
        contexts=contexts,
        searches=len(searches),
        found_nothing=sum(not answer["tools"] for answer in searches),
        tokens_saved=sum(answer["token_metrics"]["tokens_saved"] for answer in searches if answer["tools"]),
        inner_tokens=sum(map(_inner_tokens, scripts)),
        tokens_kept_out=sum(_inner_tokens(calls) - _came_back(calls[-1]) for calls in scripts),
    )


def scripts_with_calls(seen: Sequence[Seen]) -> list[Sequence[Seen]]:
    """Return each script behind the calls one by one that it repeats, which its first line counts."""
    found = ((number, _repeated(each)) for number, each in enumerate(seen) if each.tool == "run_script")
    return [seen[number - calls : number + 1] for number, calls in found if calls]


def _repeated(seen: Seen) -> int:
    named = _REPEATED.match(seen.exchange.arguments["source"])
    return int(named[1]) if named else 0


def _inner_tokens(calls: Sequence[Seen]) -> int:
    """Return the tokens of the results of a script's calls, from the same calls one by one."""
    return sum(tokens_of(text) for call in calls[:-1] for text in call.texts)


def _came_back(script: Seen) -> int:
    """Return the tokens of a script's log and result, behind what is Toolscale's own, or those of its error."""
    return sum(map(tokens_of, script.texts if script.has_failed else script.texts[1:]))


def script_rows(seen: Sequence[Seen]) -> Iterator[Row]:
    """Yield the rows of the answers of scripts."""
    for calls in scripts_with_calls(seen):
        rows = Rows("run_script", calls[-1].visible.caller.name)
        stated = json.loads(calls[-1].texts[0])
        if not calls[-1].has_failed:
            rows.add("tokens_kept_out", stated["tokens_kept_out"], _inner_tokens(calls) - _came_back(calls[-1]))
        rows.add("calls", sum(each.get("count", 1) for each in stated["calls"]), len(calls) - 1)
        yield from rows


def _is_new(seen: Seen) -> bool:
    return seen.is_first_page and not seen.has_failed


def _own_tools(stated: Stated, used: Sequence[Seen], rows: Rows) -> None:
    named = {row["name"]: row for row in stated["own_tools"]}
    rows.add("own_tools[].name", ", ".join(sorted(named)), ", ".join(sorted({seen.tool for seen in used})))
    for name in sorted({seen.tool for seen in used} & named.keys()):
        own, row = [seen for seen in used if seen.tool == name], named[name]
        # a list counts once; each page of an answer is an answer
        rows.add(f"own_tools[{name}].answers", row["answers"], sum(name != LIST or seen.is_first_page for seen in own))
        tokens = sum(map(_listed_tokens if name == LIST else _own_tokens, own))
        rows.add(f"own_tools[{name}].tokens", row["tokens"], tokens)
        texts = (text for seen in own for text in (_listed_texts(seen) if name == LIST else own_texts(seen)))
        rows.add(f"own_tools[{name}].bytes", row["bytes"], sum(len(text.encode()) for text in texts))


def _shown_tools(stated: Stated, used: Sequence[Seen], rows: Rows) -> None:
    """Compare how many answers showed each tool; the pages of one description are one answer."""
    searches = [[seen] for seen in used if seen.tool == "find_tool"]
    answers = [pages for pages in (*searches, *in_pages(used, "describe_tool")) if not pages[0].has_failed]
    texts = ("".join(text for page in pages for text in page.texts if not _is_notice(text)) for pages in answers)
    shown = Counter(tool["name"] for text in texts for tool in json.loads(text)["tools"])
    for row in stated["by_tool"]:
        if row["name"] != OTHERS:
            rows.add("by_tool[].shown", row["shown"], shown[row["name"]])
    rows.add("by_tool[].shown, all", sum(row["shown"] for row in stated["by_tool"]), shown.total())


def _calls(stated: Stated, before: Sequence[Seen], rows: Rows) -> None:
    """Compare the calls of tools that exist; a call with invalid arguments failed, though no server received it."""
    called = [seen for seen in before if seen.tool in ("call_tool", DIRECT) and seen.is_first_page]
    # each call of a script is one again
    repeated = [call for calls in scripts_with_calls(before) for call in calls[:-1]]
    calls = [seen for seen in (*called, *repeated) if _called(seen)]
    for part in ("by_tool", "by_server"):
        rows.add(f"{part}[].calls, all", sum(row["calls"] for row in stated[part]), len(calls))
        failed = sum(seen.has_failed for seen in calls)
        rows.add(f"{part}[].failed_calls, all", sum(row["failed_calls"] for row in stated[part]), failed)


def own_texts(seen: Seen) -> list[str]:
    """Return the texts of an answer that Toolscale wrote: of a server's result, only the notice of another page."""
    if seen.tool == "run_script":  # its error, log and result are those of the script
        return [] if '"calls":' in seen.texts[0] and seen.has_failed else seen.texts[:1]
    if seen.tool not in ("call_tool", DIRECT):
        return seen.texts
    # an error is Toolscale's if it begins with the server's id, or if no server was called
    names_server = any(text.startswith(f"{server}: ") for text in seen.texts for server, _ in seen.visible.scope)
    if seen.has_failed and (names_server or not _called(seen)):
        return seen.texts
    return [text for text in seen.texts[-1:] if _is_notice(text)]


def _called(seen: Seen) -> Key | None:
    """Return the tool of a server that a call names, if its caller may call it."""
    if seen.tool == DIRECT:
        server, _, name = str(seen.exchange.params["name"]).partition("__")
        return (server, name) if seen.exchange.params["name"] in seen.visible.listed else None
    server, _, name = str(seen.exchange.arguments.get("tool_name")).partition(":")
    is_permitted = (server, name) in seen.visible.scope and not seen.visible.caller.read_only
    return (server, name) if seen.tool == "call_tool" and is_permitted else None


def _is_notice(text: str) -> bool:
    try:
        parsed: object = json.loads(text)
    except ValueError:
        return False
    return isinstance(parsed, dict) and "warnings" in parsed and parsed.keys() <= {"nextCursor", "warnings"}


def _own_tokens(seen: Seen) -> int:
    return sum(map(tokens_of, own_texts(seen)))


def _listed_texts(seen: Seen) -> Iterator[str]:
    return (compact(tool) for tool in seen.exchange.result["tools"])


def _listed_tokens(seen: Seen) -> int:
    return sum(tokens_of(model_fields(tool)) for tool in seen.exchange.result["tools"])
