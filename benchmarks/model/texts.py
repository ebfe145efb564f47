"""`python -m benchmarks.model.texts DATA.npz`: the requests and tools as tokens, as the product embeds them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks.corpora import read_servers
from benchmarks.harness import DATA
from benchmarks.model.data import (
    MISSING,
    NAME_TOKENS,
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


def read_requests() -> list[dict[str, Any]]:
    """Return the requests: each a `query`, its `relevant` tools and its `style`."""
    return [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]


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
    )


def _tokens(texts: Sequence[str], length: int) -> Integers:
    tokenizer = Tokenizer.from_file(str(bundled_model() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return rows((found.ids for found in tokenizer.encode_batch(list(texts))), length)


def main() -> None:
    """Write the data."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", type=Path, default=DATA / "corpora" / "haystack.jsonl", help="file of tools")
    arguments = parser.parse_args()
    data = as_data(read_requests(), arguments.corpus)
    write_data(data, arguments.data)
    print(f"Wrote {arguments.data}: {len(data.queries)} requests, {len(data.names)} tools")


if __name__ == "__main__":
    main()
