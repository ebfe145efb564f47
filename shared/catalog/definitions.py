"""The definition of a tool, its digest, and the id of its point."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

Encoding = Literal["cl100k_base", "o200k_base", "heuristic"]

ENCODINGS: tuple[Encoding, ...] = ("cl100k_base", "o200k_base", "heuristic")

Form = Literal["wire", "model"]
"""`wire` is a tool as `tools/list` sends it; `model` is what a model API receives: name, description, input schema."""

FORMS: tuple[Form, ...] = ("wire", "model")

NAMESPACE = uuid.UUID("5f0a2b1e-7d0c-5f6e-9a53-0c1f6f2f7a11")

# Part of every digest, of each listed server's record, and of the names of the tools' collections. Raise it when the
# points of the same definition get other ids, vectors, counts or payload keys: then every server is listed again.
FEATURES_VERSION = "5"

# Definitions that a process need not parse again, and the longest of them in characters: some 10 MiB, at most 50.
DEFINITIONS_REMEMBERED = 4096
SMALL_DEFINITION = 4096

# The fields of a definition that reach a model; titles, annotations and output schemas do not.
MODEL_FIELDS = ("name", "description", "inputSchema")


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """One tool as its server declares it.

    `wire` is the JSON of `tools/list`: compact, with its keys in the server's order.
    `read_only` is the server's unverified `readOnlyHint`.
    """

    name: str
    wire: str
    description: str = ""
    parameters: tuple[str, ...] = ()
    read_only: bool = False

    @staticmethod
    def from_wire(wire: str) -> ToolDefinition:
        """Return the definition with the fields that search needs.

        Raises:
            ValueError: `wire` is not a JSON object with a string `name`.
        """
        return (_remembered if len(wire) <= SMALL_DEFINITION else _parsed)(wire)

    def as_object(self) -> dict[str, Any]:
        """Return the decoded JSON object."""
        decoded: dict[str, Any] = json.loads(self.wire)
        return decoded

    def for_model(self) -> dict[str, Any]:
        """Return the fields that a model API receives, in the server's order."""
        return {key: value for key, value in self.as_object().items() if key in MODEL_FIELDS}


def _parsed(wire: str) -> ToolDefinition:
    tool = _object(json.loads(wire))
    if not isinstance(tool.get("name"), str):
        raise ValueError("expected a JSON object with a string 'name'")  # the same class as for invalid JSON
    return ToolDefinition(
        name=tool["name"],
        wire=wire,
        description=str(tool.get("description") or tool.get("title") or ""),
        parameters=tuple(_object(_object(tool.get("inputSchema")).get("properties"))),
        read_only=_object(tool.get("annotations")).get("readOnlyHint") is True,
    )


_remembered = lru_cache(DEFINITIONS_REMEMBERED)(_parsed)


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def digest(definition: ToolDefinition, declared_name: str) -> str:
    """Return 32 hex digits that change whenever the tool or its vectors change.

    The order of the definition's keys is ignored, since some servers change it with each listing.
    The server's declared name is included, since it is embedded.
    The server's id is not, so that replicas of one server share their digests.
    """
    digest_of = _remembered_digest if len(definition.wire) <= SMALL_DEFINITION else _digest
    return digest_of(definition.wire, declared_name)


def _digest(wire: str, declared_name: str) -> str:
    canonical = json.dumps(json.loads(wire), sort_keys=True)
    material = "\x00".join((FEATURES_VERSION, declared_name, canonical))
    return hashlib.sha256(material.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_remembered_digest = lru_cache(DEFINITIONS_REMEMBERED)(_digest)


def catalog_digest(digests: Mapping[str, str]) -> str:
    """Return 32 hex digits for a server's whole set of tools, given their digests by name."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def point_id(server_id: str, tool_name: str) -> str:
    """Return the tool's point id, a UUID of version 8 (RFC 9562); the same pair always has the same id.

    The first half is a hash of the server, with 60 bits; the second is one of the tool within the server, with 62.
    Two of 20,000 tools of a server share an id with a probability of 4e-11, and tools of two servers with less.
    """
    server = uuid.uuid5(NAMESPACE, server_id)
    first, second = str(server), str(uuid.uuid5(server, tool_name))
    return f"{first[:14]}8{first[15:19]}{second[19:]}"


def server_half(point: str) -> str:
    """Return the half of a tool's point id that all tools of its server share.

    Two of 100,000 servers share it with a probability of 4e-9.
    """
    return point[:18]
