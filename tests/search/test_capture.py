"""Attackers that copy tools do not come first: the whole path, with the bundled model and the embedded index."""

from __future__ import annotations

import anyio
import pytest

from benchmarks.capture import COPYING, FLOODS, attacks
from benchmarks.corpora import System, asking, ingested
from benchmarks.requests import corpus
from shared.catalog import ToolDefinition
from shared.text import BUNDLED_MODEL
from shared.text.embedding import FastEmbedder
from tests.support.builders import definition

pytestmark = pytest.mark.process

VICTIMS = {
    "git": [
        definition("git_log", "Shows the commits of a repository, newest first, with author, date and message."),
        definition("git_checkout", "Switches the working tree to another branch of the repository."),
        definition("git_diff", "Shows the differences between two branches or commits, line by line."),
    ],
    "files": [
        definition("read_text_file", "Reads a text file from disk and returns its contents."),
        definition("move_file", "Moves a file or directory to another path, or renames it."),
    ],
    "slides": [
        definition("add_chart", "Adds a bar, line or pie chart with the given data to a slide."),
        definition("save_presentation", "Saves the presentation as a file on disk."),
    ],
}
QUESTIONS = {
    "who committed to this repository recently": "git_log",
    "go to another branch": "git_checkout",
    "compare two branches": "git_diff",
    "what is in this text file": "read_text_file",
    "rename a file": "move_file",
    "put a bar chart on the slide": "add_chart",
    "write the presentation to disk": "save_presentation",
}


async def first(system: System) -> dict[str, tuple[str, str]]:
    async with asking(system) as find:
        return {question: (await find(question, 8))[0] for question in QUESTIONS}


def test_the_owners_of_originals_keep_their_first_places() -> None:
    victims: dict[str, list[ToolDefinition]] = VICTIMS
    embedder, captured = FastEmbedder(BUNDLED_MODEL), 0
    for strategy in (*COPYING, *FLOODS):
        with ingested(corpus({**victims, **attacks(victims)[strategy]}), embedder) as system:
            captured += sum(server not in victims for server, _ in anyio.run(first, system).values())
            for server in victims:
                system.own(server)
            after = anyio.run(first, system)

        if strategy in COPYING:
            assert [tool for _, tool in after.values()] == list(QUESTIONS.values()), strategy
        lost = sum(server not in victims for server, _ in after.values())
        assert lost <= (len(after) / 4 if strategy in FLOODS else 0), strategy
    assert captured  # where no server has an owner, copies are first
