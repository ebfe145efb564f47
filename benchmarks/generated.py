"""Tool definitions and queries made from a seed: the same arguments give the same texts.

Sizes are like those of public servers: 170 tokens a definition in the mean, nine in ten between 75 and 330.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

Definition = dict[str, Any]


def server_id(number: int) -> str:
    """Return the id of a generated server."""
    return f"{DOMAINS[number % len(DOMAINS)]}-{number:04}"


def definitions(server: str, tools: int, seed: int) -> list[Definition]:
    """Return this server's tools as `tools/list` would give them; no two of them share a name."""
    rng = random.Random(f"{seed}:{server}")
    actions = list(product(VERBS, NOUNS))
    return [_definition(server, verb, noun, rng) for verb, noun in rng.sample(actions, tools)]


def queries(count: int, seed: int) -> list[str]:
    """Return what agents may ask for, no two alike."""
    rng = random.Random(f"{seed}:queries")
    tasks = list(product(VERBS, DETERMINERS, NOUNS, PURPOSES))
    return [" ".join(task) for task in rng.sample(tasks, count)]


def _definition(server: str, verb: str, noun: str, rng: random.Random) -> Definition:
    parameters = rng.sample(PARAMETERS, rng.choice(PARAMETER_COUNTS))
    return {
        "name": f"{verb}_{noun.replace(' ', '_')}",
        "description": _description(server, verb, noun, rng),
        "inputSchema": {
            "type": "object",
            "properties": {name: _property(kind, text, noun, rng) for name, kind, text in parameters},
            "required": [name for name, _, _ in parameters[: rng.randint(0, 2)]],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": verb in READING_VERBS, "openWorldHint": False},
    }


def _description(server: str, verb: str, noun: str, rng: random.Random) -> str:
    domain = server.rpartition("-")[0]
    remarks = rng.sample(REMARKS, rng.randint(0, 3))
    first = f"{verb.capitalize()} the {noun} of your {domain} workspace {rng.choice(PURPOSES)}."
    return " ".join([first, *(remark.format(noun=noun, verb=verb) for remark in remarks)])


def _property(kind: str, text: str, noun: str, rng: random.Random) -> Definition:
    described: Definition = {"type": kind, "description": text.format(noun=noun)}
    if kind == "array":
        return {**described, "items": {"type": "string"}, "maxItems": rng.choice((10, 50, 100))}
    if kind == "integer":
        return {**described, "minimum": 1, "maximum": rng.choice((50, 100, 500)), "default": rng.choice((10, 20))}
    if kind == "string" and rng.random() < 0.2:
        return {**described, "enum": rng.sample(STATES, rng.randint(2, 5))}
    return described


# The words that they are made of

DOMAINS = (
    "billing", "calendar", "helpdesk", "warehouse", "payroll", "forum", "clinic", "fleet",
    "library", "newsroom", "kitchen", "laboratory", "marketing", "property", "school", "travel",
)  # fmt: skip

READING_VERBS = ("list", "get", "search", "compare", "export", "summarize", "validate", "count")
VERBS = (*READING_VERBS, "create", "update", "delete", "archive", "assign", "schedule", "approve", "import")

DETERMINERS = ("the", "each")

NOUNS = (
    "invoice", "appointment", "ticket", "shipment", "payslip", "discussion thread", "patient record", "vehicle",
    "loan", "article draft", "recipe", "sample analysis", "campaign", "lease", "exam result", "booking",
    "customer", "supplier", "stock level", "access role", "audit entry", "webhook", "report template", "reminder",
)  # fmt: skip

PURPOSES = (
    "for the current quarter",
    "that changed since yesterday",
    "so that the team can review it",
    "before the month is closed",
    "across all locations",
    "that nobody has looked at yet",
    "together with its history",
    "and tell everyone concerned",
    "with the amounts converted to euros",
    "for a given owner",
)

REMARKS = (
    "Returns at most one page; pass the returned cursor to continue.",
    "Use this when a user mentions a {noun} by name rather than by its identifier.",
    "Do not use it to {verb} more than a hundred entries at once, since the request would time out.",
    "Results are sorted by the time of their last change, newest first.",
    "Requires the permission to see every {noun} in the workspace; otherwise the answer is empty.",
    "Dates are in ISO 8601 and default to UTC unless a time zone is given.",
    "If the {noun} does not exist, an error says so and nothing is changed.",
    "The operation is recorded in the audit log under the name of the caller.",
)

# name, JSON Schema type, description
PARAMETERS = (
    ("identifier", "string", "Identifier of the {noun}, as another tool returned it."),
    ("query", "string", "Words to look for in the title and the text of the {noun}; quotes search for a phrase."),
    ("limit", "integer", "How many entries to return at most."),
    ("cursor", "string", "Where to continue, as given by the previous answer."),
    ("created_after", "string", "Only what was created after this moment, in ISO 8601."),
    ("labels", "array", "Labels that the {noun} must carry, all of them."),
    ("include_archived", "boolean", "Whether to consider what was archived, too."),
    ("owner", "string", "E-mail address or user name of the person responsible."),
    ("status", "string", "The state the {noun} should be in."),
    ("dry_run", "boolean", "Only report what would happen, and change nothing."),
    ("fields", "array", "Names of the fields to return; leave it out to get all of them."),
    ("amount", "number", "Amount in the smallest unit of the currency of the {noun}."),
    ("metadata", "object", "Keys and values to attach to the {noun}, kept as they are."),
    ("comment", "string", "A remark for the people who will look at the {noun} later."),
)

# how many parameters a tool has, each entry as likely as the next
PARAMETER_COUNTS = (0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 8, 11)

STATES = ("open", "pending", "in_review", "approved", "rejected", "closed", "archived", "draft")
