"""`toolscale find`, `describe` and `call`: the tools of a catalogue, as an agent finds and calls them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, cast

import typer

from shared.catalog import DEFAULT_ENCODING, object_of
from shared.errors import ServerUnknown, ServiceRejected, ToolNotFound
from shared.quoting import printable, quoted_name
from toolscale.client.service import open_service
from toolscale.commands.options import (
    DataDirOption,
    JsonOption,
    TokenOption,
    UrlOption,
    complete_server,
    key_and_value,
)
from toolscale.console import FIRST_SERVERS, Column, err, out, print_json, print_notes, print_table, thousands, working

Object = dict[str, Any]
Detail = Literal["summary", "detailed", "full", "auto"]

ToolArgument = Annotated[
    str, typer.Argument(metavar="TOOL", help="`server:tool`, or another name of `toolscale find`.", show_default=False)
]
_ASKING = "Asking the catalogue ..."
_DIGEST = re.compile("@[0-9a-f]{8}$")


def find(
    query: Annotated[list[str], typer.Argument(metavar="QUERY", help="The task of the tool, in a few words.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="At most so many tools.")] = 8,
    server: Annotated[
        list[str] | None,
        typer.Option(help="Only tools of this server; repeat it for several.", autocompletion=complete_server),
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only tools of this group; repeat it for several.")] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only tools that declare that they change nothing.")
    ] = False,
    detail: Annotated[Detail, typer.Option(help="How much of each tool --json prints.")] = "summary",
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Find the tools for a task, as find_tool does for an agent, and show the saving."""
    arguments: Object = {"tool_description": " ".join(query), "limit": limit, "read_only": read_only}
    arguments |= {"detail": detail if as_json else "summary"}
    arguments |= {name: value for name, value in (("servers", server), ("groups", group)) if value}
    with working(_ASKING), open_service(url, token, data_dir) as service:
        answer = service.ask("find_tool", arguments)
        if server and not answer["tools"]:
            known = [row["server_id"] for row in service.servers()["servers"]]
            for name in server:
                if name not in known:
                    raise ServerUnknown.near(name, known)
    if as_json:
        print_json(answer)
    else:
        print_tools(answer)


def print_tools(answer: Object) -> None:
    """Print an answer of find_tool as a table; warnings go to stderr."""
    rows: list[tuple[str, str, str]] = []
    for tool in answer["tools"]:
        replicas = tool.get("served_by", {})
        # a replicated tool has no server in its name, and may have a part of its digest
        name = _DIGEST.sub("", tool["name"]) if replicas else tool["name"].partition(":")[2]
        count = f" ({replicas['count']} servers)" if replicas else ""
        does = str(tool.get("summary", "")).removeprefix(name)
        rows.append((printable(tool["name"] + count), thousands(tool.get("token_count")), printable(does)))
    if rows:
        print_table((Column("tool"), Column("wire tokens", is_number=True), Column("what it does")), rows)
    if nearest := answer.get("nearest"):
        out.print("No tool fits. The nearest:")
        for line in nearest:
            out.print(f"  {printable(line)}")
    for warning in answer.get("warnings", []):
        print_notes(printable(warning))
    metrics = answer["token_metrics"]
    if not metrics["baseline_tokens"] and not answer["tools"]:
        print_notes(FIRST_SERVERS)
    tokens = sum(tool.get("token_count") or 0 for tool in answer["tools"])  # the sum of the column
    if tokens and metrics["baseline_tokens"]:
        baseline = max(metrics["baseline_tokens"], tokens)
        saved = f"{100 * (1 - tokens / baseline):.4g} % saved ({metrics.get('encoding', DEFAULT_ENCODING)}, wire form)"
        out.print(f"{tokens:,} tokens in place of {baseline:,}: {saved}")


def describe(
    tool: ToolArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Show a tool: its description, its parameters and its tokens."""
    with working(_ASKING), open_service(url, token, data_dir) as service:
        found = description(service.ask("describe_tool", {"names": [tool]}), tool)
    if as_json:
        print_json(found)
        return
    out.print(f"{printable(found['name'])}: {thousands(found.get('token_count'))} wire tokens")
    for line in str(found.get("description", "")).splitlines():
        out.print(printable(line))
    if rows := parameters(found):
        out.print("")
        print_table(tuple(map(Column, ("parameter", "type", "required", "description"))), rows)


def call(
    tool: ToolArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="An argument; JSON where the parameter is not a text.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Confirm the call if the operator's policy asks.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Call a tool, and print its result.

    If the operator's policy requires a confirmation, it asks; without a terminal, that needs --yes.
    Exit code 1 means that the tool reports an error.
    """
    given = [key_and_value(text, "KEY=VALUE") for text in arguments or ()]

    def confirm(question: str) -> bool:
        if yes:
            return True
        if not (sys.stdin.isatty() and err.is_terminal):
            raise ServiceRejected(f"the operator's policy asks before this call; confirm it with --yes: {question}")
        return typer.confirm(printable(question), err=True)

    with open_service(url, token, data_dir) as service:
        with working(_ASKING):
            found = description(service.ask("describe_tool", {"names": [tool]}), tool)
        result = service.call("call_tool", {"tool_name": tool, "parameters": arguments_of(found, given)}, confirm)
    if as_json:
        print_json({name: value for name, value in result.items() if name not in ("resultType", "_meta")})
    else:
        for line in lines(result):
            (err if result.get("isError") else out).print(printable(line), soft_wrap=True)
    if result.get("isError"):
        raise typer.Exit(1)


def description(answer: Object, name: str) -> Object:
    """Return the tool in an answer of `describe_tool`.

    Raises:
        ToolNotFound: no searchable tool has this name, or several have it.
    """
    for problem in answer.get("not_found", ()):
        told = (tuple(problem.get(field, ())) for field in ("candidates", "hints"))
        raise ToolNotFound(name, problem["reason"], *told)
    return cast("Object", answer["tools"][0])


def parameters(tool: Object) -> list[tuple[str, str, str, str]]:
    """Return the rows of a tool's parameters: name, type, whether it is required, and description."""
    from query.answers.answer import type_name  # noqa: PLC0415  # takes as long as all other imports of a command

    schema = object_of(tool.get("inputSchema"))
    required = schema.get("required")
    rows: list[tuple[str, str, str, str]] = []
    for name, parameter in object_of(schema.get("properties")).items():
        is_required = isinstance(required, list) and name in required
        about = str(object_of(parameter).get("description", ""))
        kind = printable(type_name(parameter))
        rows.append((printable(name), kind, "yes" if is_required else "", printable(about)))
    return rows


def arguments_of(tool: Object, given: Iterable[tuple[str, str]]) -> Object:
    """Return the arguments of a call: text where the tool's input schema allows text, else the value as JSON.

    A value that is not JSON remains a text, which the service rejects if the schema does.
    """
    properties = object_of(object_of(tool.get("inputSchema")).get("properties"))
    return {name: text if _allows_text(properties.get(name)) else _parsed(text) for name, text in given}


def lines(result: Object) -> Iterator[str]:
    """Yield the lines of a result; content other than text is named."""
    for block in result.get("content", ()):
        match block:
            case {"type": "text"}:
                yield from str(block.get("text", "")).splitlines()
            case {"type": "resource_link"}:
                yield f"[resource {quoted_name(str(block.get('uri')))}]"
            case {"type": "resource"}:
                yield f"[resource {quoted_name(str(block.get('resource', {}).get('uri')))}]"
            case _:
                data = str(block.get("data", ""))
                yield f"[{block.get('type')} {block.get('mimeType')}, {len(data):,} characters of base64]"
    if not result.get("content") and result.get("structuredContent") is not None:
        yield from json.dumps(result["structuredContent"], indent=2).splitlines()


def _allows_text(schema: object) -> bool:
    parts = [object_of(schema)]
    for key in ("anyOf", "oneOf"):
        if isinstance(alternatives := parts[0].get(key), list):
            parts += map(object_of, cast("list[object]", alternatives))
    return any("string" in (kind if isinstance(kind := part.get("type"), list) else [kind]) for part in parts)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
