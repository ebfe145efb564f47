"""The numbers of `toolscale costs` and `toolscale ls` beside their recount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.recount.counting import Raw, recount
from benchmarks.recount.rows import Row, Rows
from benchmarks.recount.scopes import Upstream

COMMAND = "toolscale costs"


def costs_rows(stated: dict[str, Any], upstream: Upstream, own: Sequence[Raw]) -> list[Row]:
    """Return the rows of the costs of all servers, and of Toolscale; `own` are the tools of its `tools/list`."""
    rows = Rows("costs", COMMAND)
    _add(rows, "total", stated["total"], list(upstream.tools.values()), stated["encoding"])
    _add(rows, "toolscale", stated["toolscale"], own, stated["encoding"])
    for server in stated["servers"]:
        of_server = [tool for (name, _), tool in upstream.tools.items() if name == server["server_id"]]
        _add(rows, "servers[]", server, of_server, stated["encoding"])
    return rows.rows


def servers_rows(stated: Sequence[dict[str, Any]], upstream: Upstream) -> list[Row]:
    """Return the rows of the servers of `toolscale ls`."""
    rows, total = Rows("ls", "toolscale ls"), upstream.sum(upstream.tools, "model", "cl100k_base")
    for server in stated:
        of_server = [key for key in upstream.tools if key[0] == server["server_id"]]
        tokens = upstream.sum(of_server, "model", "cl100k_base")
        rows.add("tools", server["tools"], len(of_server))
        rows.add("tokens", server["tokens"], tokens)
        rows.add("share", server["share"], round(tokens / total, 4))
    return rows.rows


def _add(rows: Rows, subject: str, stated: dict[str, Any], tools: Sequence[Raw], encoding: str) -> None:
    rows.add(f"{subject}.tools", stated["tools"], len(tools))
    for form, tokens in recount(tools, encoding).items():
        rows.add(f"{subject}.tokens.{form}", stated["tokens"][form], tokens)
