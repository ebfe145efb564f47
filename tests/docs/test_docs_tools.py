"""docs/tools.md has a section for each tool, and shows valid calls and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp.types import INVALID_PARAMS
from pydantic import BaseModel

from query.answers.answer import ContextMeta, FindResponse
from query.calling.call import RESOURCE_NOT_FOUND
from query.catalogue import Catalogue
from query.records import Ledger
from query.tool import definition_of
from query.tools.list_available_tools import ListedServer
from query.tools.registry import builtin_tools
from query.usage.store_sqlite import SqliteUsage
from tests.support.calling import upstreams_to
from tests.support.fakes import FakeEmbedder, FakeIndex
from tests.support.transcripts import TRANSCRIPTS, Transcript

DOCUMENT = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))


@pytest.fixture
def schemas(tmp_path: Path) -> Generator[dict[str, dict[str, Any]]]:
    """Yield the input schema of each tool of ours, as it is listed, by name."""
    index = FakeIndex()
    upstreams = upstreams_to({})
    with (
        closing(SqliteUsage(tmp_path / "savings.sqlite3", 1)) as usage,
    ):
        catalogue = Catalogue(index, FakeEmbedder(), Ledger(index), usage=usage)
        yield {offer.tool.name: definition_of(offer).input_schema for offer in builtin_tools(catalogue, upstreams)}


def blocks_below(transcript: Transcript) -> tuple[str, str]:
    """Return the call and the answer that stand below a transcript's marker."""
    _, found, below = SECTIONS[transcript.tool].partition(transcript.marker)
    assert found, transcript.marker
    call, answer = re.findall(r"```json\n(.*?)\n```", below, re.DOTALL)[:2]
    return call, answer


def check_fields(value: Any, model: type[BaseModel]) -> None:
    """Fail where a value lacks a field that the model requires, or has one that the model does not know."""
    schema = model.model_json_schema(mode="serialization", by_alias=True)
    for part in (schema, *schema.get("$defs", {}).values()):
        if "properties" in part:
            part["additionalProperties"] = False
    jsonschema.validate(value, schema)


def test_every_tool_has_a_section(schemas: dict[str, dict[str, Any]]) -> None:
    assert SECTIONS.keys() == schemas.keys()


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda transcript: transcript.tool)
def test_a_call_that_is_shown_is_valid_and_was_answered(
    transcript: Transcript, schemas: dict[str, dict[str, Any]]
) -> None:
    call, answer = blocks_below(transcript)

    assert json.loads(call) == {"name": transcript.tool, "arguments": transcript.arguments}
    jsonschema.validate(transcript.arguments, schemas[transcript.tool])
    assert json.loads(answer)


def test_the_answers_that_are_shown_have_the_fields_that_answers_have_now() -> None:
    found, _, listing = (json.loads(blocks_below(transcript)[1]) for transcript in TRANSCRIPTS)

    check_fields(found, FindResponse)
    check_fields(listing["meta"], ContextMeta)
    for server in listing["toolsByServer"]:
        check_fields(server, ListedServer)


def test_the_error_codes_in_the_document_are_those_of_a_refused_argument_and_of_an_unknown_resource() -> None:
    assert set(re.findall(r"-32\d{3}", DOCUMENT)) == {str(INVALID_PARAMS), str(RESOURCE_NOT_FOUND)}
