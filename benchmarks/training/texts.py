"""`python -m benchmarks.training.texts DATA.npz`: the requests and tools as tokens, as the product embeds them.

It runs in the project's environment. The tools lie beside the project, and are only read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer

from benchmarks.command import DATA
from benchmarks.retrieval.data import read_servers
from benchmarks.training.data import (
    MISSING,
    NAME_TOKENS,
    PIECE_TOKENS,
    QUERY_TOKENS,
    TEXT_TOKENS,
    Data,
    Integers,
    filled,
    rows,
    write_data,
)
from shared.text.embedding import bundled_model, name_passage, text_passage

REQUESTS = Path(__file__).with_name("requests.jsonl")
CORPUS = DATA / "corpora" / "haystack.jsonl"
# Of a description; few are longer.
MOST_CHARACTERS = 4_000


def read_requests(path: Path = REQUESTS) -> list[dict[str, Any]]:
    """Return the requests: each a `query`, its `relevant` tools and its `style`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_data(requests: Sequence[dict[str, Any]], corpus: Path) -> Data:
    """Return requests and tools as tokens; KeyError if the corpus lacks a tool of a request."""
    tools = [(server, tool) for server in read_servers([corpus]) for tool in server.listing.tools]
    numbers = {(server.name, tool.name): number for number, (server, tool) in enumerate(tools)}
    relevant = [[numbers[tool["server"], tool["name"]] for tool in request["relevant"]] for request in requests]
    servers: dict[str, int] = {}
    return Data(
        queries=_tokens([request["query"] for request in requests], QUERY_TOKENS),
        names=_tokens([name_passage(tool, server.name) for server, tool in tools], NAME_TOKENS),
        texts=_tokens([text_passage(tool) for _, tool in tools], TEXT_TOKENS),
        servers=np.array([servers.setdefault(server.name, len(servers)) for server, _ in tools], dtype=np.int32),
        relevant=filled(relevant, max(map(len, relevant)), MISSING),
        styles=np.array([request["style"] for request in requests]),
        pieces=_pieces(descriptions(corpus)),
    )


def descriptions(corpus: Path) -> list[str]:
    """Return the descriptions of the tools of this file and of their parameters, sorted, each once."""
    tools = map(json.loads, corpus.read_text(encoding="utf-8").splitlines())
    return sorted({text[:MOST_CHARACTERS] for tool in tools for text in _described(tool) if text})


def _described(value: Any) -> Iterator[str]:
    """Yield each description of a definition, however deep it is."""
    parts: Sequence[Any] = ()
    if isinstance(value, dict):
        by_key = cast("dict[str, Any]", value)
        parts = list(by_key.values())
        if isinstance(own := by_key.get("description"), str):
            yield own
    elif isinstance(value, list):
        parts = cast("Sequence[Any]", value)
    for part in parts:
        yield from _described(part)


def main() -> None:
    """Write the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="file of tools")
    arguments = parser.parse_args()
    data = as_data(read_requests(), arguments.corpus)
    write_data(data, arguments.data)
    print(f"Wrote {arguments.data}: {len(data.queries)} requests, {len(data.names)} tools")


def _tokens(texts: Sequence[str], length: int) -> Integers:
    return rows(_encoded(texts), length)


def _pieces(texts: Sequence[str]) -> Integers:
    """Return the tokens of these texts, a long one in several rows."""
    most = PIECE_TOKENS - 2
    cut = [
        [first, *inner[start : start + most], last]
        for first, *inner, last in _encoded(texts)
        for start in range(0, len(inner), most)
    ]
    return rows(cut, PIECE_TOKENS)


def _encoded(texts: Sequence[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(bundled_model() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [found.ids for found in tokenizer.encode_batch(list(texts))]


if __name__ == "__main__":
    main()
