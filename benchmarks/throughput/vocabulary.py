"""The words that generated tools and queries are made of."""

from __future__ import annotations

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
