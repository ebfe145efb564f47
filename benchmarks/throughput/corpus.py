"""Tool definitions and queries as they occur in the wild, made from a seed: the same arguments give the same texts.

No text is anybody else's. Sizes are like those of public servers: 170 tokens a definition in the mean, nine in ten
between 75 and 330.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

from benchmarks.throughput import vocabulary as words

Definition = dict[str, Any]


def server_id(number: int) -> str:
    """Return the id of a generated server."""
    return f"{words.DOMAINS[number % len(words.DOMAINS)]}-{number:04}"


def definitions(server: str, tools: int, seed: int) -> list[Definition]:
    """Return this server's tools as `tools/list` would give them; no two of them share a name."""
    rng = random.Random(f"{seed}:{server}")
    actions = list(product(words.VERBS, words.NOUNS))
    return [_definition(server, verb, noun, rng) for verb, noun in rng.sample(actions, tools)]


def queries(count: int, seed: int) -> list[str]:
    """Return what agents may ask for, no two alike."""
    rng = random.Random(f"{seed}:queries")
    tasks = list(product(words.VERBS, words.DETERMINERS, words.NOUNS, words.PURPOSES))
    return [" ".join(task) for task in rng.sample(tasks, count)]


def _definition(server: str, verb: str, noun: str, rng: random.Random) -> Definition:
    parameters = rng.sample(words.PARAMETERS, rng.choice(words.PARAMETER_COUNTS))
    return {
        "name": f"{verb}_{noun.replace(' ', '_')}",
        "description": _description(server, verb, noun, rng),
        "inputSchema": {
            "type": "object",
            "properties": {name: _property(kind, text, noun, rng) for name, kind, text in parameters},
            "required": [name for name, _, _ in parameters[: rng.randint(0, 2)]],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": verb in words.READING_VERBS, "openWorldHint": False},
    }


def _description(server: str, verb: str, noun: str, rng: random.Random) -> str:
    domain = server.rpartition("-")[0]
    remarks = rng.sample(words.REMARKS, rng.randint(0, 3))
    first = f"{verb.capitalize()} the {noun} of your {domain} workspace {rng.choice(words.PURPOSES)}."
    return " ".join([first, *(remark.format(noun=noun, verb=verb) for remark in remarks)])


def _property(kind: str, text: str, noun: str, rng: random.Random) -> Definition:
    described: Definition = {"type": kind, "description": text.format(noun=noun)}
    if kind == "array":
        return {**described, "items": {"type": "string"}, "maxItems": rng.choice((10, 50, 100))}
    if kind == "integer":
        return {**described, "minimum": 1, "maximum": rng.choice((50, 100, 500)), "default": rng.choice((10, 20))}
    if kind == "string" and rng.random() < 0.2:
        return {**described, "enum": rng.sample(words.STATES, rng.randint(2, 5))}
    return described
