"""The numbers of a savings report beside their recount from the messages before it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.recount.counting import compact, model_fields, tokens_of
from benchmarks.recount.proxy import Exchange
from benchmarks.recount.rows import Row, Rows
from benchmarks.recount.scopes import Upstream, Visible

BUILT_IN = (
    "find_tool", "describe_tool", "call_tool", "list_available_tools", "get_active_toolset", "get_savings_report",
)  # fmt: skip
LIST, DIRECT, OTHERS = "tools/list", "direct", "(others)"


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
    def question(self) -> str:
        """Return its caller, its path and its arguments without the cursor."""
        asked = {name: value for name, value in self.exchange.arguments.items() if name != "cursor"}
        return f"{self.exchange.caller} {self.exchange.path} {compact(asked)}"

    @property
    def tool(self) -> str:
        """Return `tools/list`, the built-in tool that answered, or `direct`."""
        if self.exchange.method == LIST:
            return LIST
        name = self.exchange.params["name"]
        return name if name in BUILT_IN else DIRECT


def in_pages(seen: Sequence[Seen], tool: str) -> list[list[Seen]]:
    """Return the answers of a tool, each as its pages: those of the same arguments, from one without a cursor on."""
    answers: list[list[Seen]] = []
    latest: dict[str, list[Seen]] = {}
    for each in seen:
        if each.tool == tool:
            if each.is_first_page:
                answers.append([])
                latest[each.question] = answers[-1]
            latest[each.question].append(each)
    return answers


def report_rows(stated: dict[str, Any], before: Sequence[Seen], upstream: Upstream, answer: str) -> list[Row]:
    """Return the rows of a report; `before` are the messages that it covers, of the callers that it covers."""
    rows = Rows("report", answer)
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
    rows.add(
        "break_even_tools", stated.get("break_even_tools"), math.ceil(used_tokens * tools / share) if share else None
    )
    _own_tools(stated, used, rows)
    _shown_tools(stated, used, rows)
    _calls(stated, before, rows)
    return rows.rows


def _totals(used: Sequence[Seen], upstream: Upstream) -> Counter[str]:
    """Return the sums of one caller's messages."""
    lists = [seen for seen in used if seen.tool == LIST]
    answers = [seen for seen in used if seen.tool != LIST]
    first = [seen.visible.scope for seen in lists if seen.is_first_page]
    contexts = min(len(first), len(answers))
    listed, written = sum(map(_listed_tokens, lists)), sum(_own_tokens(seen) for seen in answers)
    baseline, tools, carried = (
        number * contexts // len(first) if first else 0
        for number in (sum(upstream.sum(keys, "model", "cl100k_base") for keys in first), sum(map(len, first)), listed)
    )
    return Counter(
        net_tokens_saved=baseline - listed - written,
        baseline_tokens=baseline,
        baseline_tools=tools,
        listed_tokens=listed,
        answer_tokens=written,
        used_tokens=carried + written if contexts else 0,
        contexts=contexts,
        **_searches(answers),
    )


def _searches(answers: Iterable[Seen]) -> dict[str, int]:
    new = [_parsed(seen) for seen in answers if seen.tool == "find_tool" and seen.is_first_page and not _failed(seen)]
    return {
        "searches": len(new),
        "found_nothing": sum(not answer["tools"] for answer in new),
        "tokens_saved": sum(answer["token_metrics"]["tokens_saved"] for answer in new if answer["tools"]),
    }


def _own_tools(stated: dict[str, Any], used: Sequence[Seen], rows: Rows) -> None:
    named = {row["name"]: row for row in stated["own_tools"]}
    rows.add("own_tools[].name", ", ".join(sorted(named)), ", ".join(sorted({seen.tool for seen in used})))
    for name in sorted({seen.tool for seen in used} & named.keys()):
        own, row = [seen for seen in used if seen.tool == name], named[name]
        # a list counts once; each page of an answer is an answer
        rows.add(f"own_tools[{name}].answers", row["answers"], sum(name != LIST or seen.is_first_page for seen in own))
        tokens = sum(_listed_tokens(seen) if name == LIST else _own_tokens(seen) for seen in own)
        rows.add(f"own_tools[{name}].tokens", row["tokens"], tokens)
        texts = (text for seen in own for text in (_listed_texts(seen) if name == LIST else own_texts(seen)))
        rows.add(f"own_tools[{name}].bytes", row["bytes"], sum(len(text.encode()) for text in texts))


def _shown_tools(stated: dict[str, Any], used: Sequence[Seen], rows: Rows) -> None:
    """Compare how many answers showed each tool; the pages of one description are one answer."""
    searches = [[seen] for seen in used if seen.tool == "find_tool"]
    answers = [pages for pages in (*searches, *in_pages(used, "describe_tool")) if not _failed(pages[0])]
    texts = map(_whole_text, answers)
    shown = Counter(tool["name"] for text in texts for tool in json.loads(text)["tools"])
    for row in stated["by_tool"]:
        if row["name"] != OTHERS:
            rows.add("by_tool[].shown", row["shown"], shown[row["name"]])
    rows.add("by_tool[].shown, all", sum(row["shown"] for row in stated["by_tool"]), shown.total())


def _calls(stated: dict[str, Any], before: Sequence[Seen], rows: Rows) -> None:
    """Compare the calls of tools that exist; a call with invalid arguments failed, though no server received it."""
    called = [seen for seen in before if seen.tool in ("call_tool", DIRECT) and seen.is_first_page]
    calls = [seen for seen in called if _is_call(seen)]
    for table in ("by_tool", "by_server"):
        rows.add(f"{table}[].calls, all", sum(row["calls"] for row in stated[table]), len(calls))
        failed = sum(_failed(seen) for seen in calls)
        rows.add(f"{table}[].failed_calls, all", sum(row["failed_calls"] for row in stated[table]), failed)


def own_texts(seen: Seen) -> list[str]:
    """Return the texts of an answer that Toolscale wrote: of a server's result, only the notice of another page."""
    texts = _texts(seen)
    if seen.tool not in ("call_tool", DIRECT) or _is_own_error(seen):
        return texts
    return [text for text in texts[-1:] if _is_notice(text)]


def _is_own_error(seen: Seen) -> bool:
    """Return whether an error is Toolscale's: it begins with the server's id, or no server was called."""
    is_of_server = any(text.startswith(f"{server}: ") for text in _texts(seen) for server, _ in seen.visible.scope)
    return _failed(seen) and (is_of_server or not _is_call(seen))


def _is_call(seen: Seen) -> bool:
    """Return whether a call names a tool that its caller may call."""
    if seen.tool == DIRECT:
        return seen.exchange.params["name"] in seen.visible.listed
    server, _, name = str(seen.exchange.arguments.get("tool_name")).partition(":")
    return (server, name) in seen.visible.scope and not seen.visible.caller.read_only


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


def _failed(seen: Seen) -> bool:
    return "error" in seen.exchange.response or bool(seen.exchange.result.get("isError"))


def _whole_text(pages: Sequence[Seen]) -> str:
    return "".join(text for page in pages for text in _texts(page) if not _is_notice(text))


def _texts(seen: Seen) -> list[str]:
    return [block["text"] for block in seen.exchange.result.get("content", ()) if block["type"] == "text"]


def _parsed(seen: Seen) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(seen.exchange.result["content"][0]["text"])
    return answer
