"""A data directory like that of the retrieval benchmarks, with four tools, two queries and a short script of scores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.retrieval import QUICK, SETS

TOOLS = (
    ("mail", "send_letter", "Send a letter by mail"),
    ("mail", "list_letters", "List all letters"),
    ("files", "read_file", "Read a file from disk"),
    ("files", "move", ""),
)
QUERIES = {"letter": ("send a letter to my aunt", "mail", "send_letter"), "file": ("read a file", "files", "read_file")}
SCRIPT = """
import json

def load_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]

def score_query(query, ranked):
    wanted = {(tool["server"], tool["name"]) for tool in query["relevant"]}
    found = {cut: float(bool(wanted & set(map(tuple, ranked[:cut])))) for cut in (1, 3, 5, 8, 10)}
    return {f"{name}@{cut}": share for name in ("recall", "hit") for cut, share in found.items()}

def score(queries, run, ci):
    scores = [score_query(query, run[query["id"]]) for query in queries]
    mean = {name: sum(score[name] for score in scores) / len(scores) for name in scores[0]}
    return {**mean, "ci": {name: (value, value) for name, value in mean.items()}}, scores
"""


def write_retrieval_data(directory: Path) -> Path:
    """Write the data of the set that quick runs measure, and return the directory."""
    (quick,) = (query_set for query_set in SETS if query_set.name == QUICK)
    tools = [
        {"server": server, "name": name, "description": text, "inputSchema": {"type": "object"}}
        for server, name, text in TOOLS
    ]
    queries = [
        {"id": name, "query": text, "relevant": [{"server": server, "name": tool}]}
        for name, (text, server, tool) in QUERIES.items()
    ]
    for name in ("corpora", "queries"):
        (directory / name).mkdir(parents=True)
    (corpus,) = quick.corpus_files(directory)
    write_lines(corpus, tools)
    write_lines(quick.query_file(directory), queries)
    (directory / "evaluate.py").write_text(SCRIPT)
    return directory


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Write one JSON object a line, and return the file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
