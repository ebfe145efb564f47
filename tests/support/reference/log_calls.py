"""The calls of structlog's loggers in the code, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("workers", "query", "toolscale", "shared")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@dataclass(frozen=True)
class LogCall:
    """A call that logs; `has_more_fields` if some of its fields are only known at run time."""

    event: str
    level: str
    fields: tuple[str, ...]
    has_more_fields: bool


def log_calls(package: str) -> list[LogCall]:
    """Return every call that logs in a package of the product."""
    return [call for path in sorted((ROOT / package).rglob("*.py")) for call in _calls_in(path)]


def _calls_in(path: Path) -> Iterator[LogCall]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and "get_logger" in ast.unparse(node.value)]
    loggers = {ast.unparse(node.targets[0]): node.value for node in assigned}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            logger = loggers.get(ast.unparse(node.func.value), node.func.value)
            if "get_logger" in ast.unparse(logger):
                yield _log_call(node, node.func.attr, logger)


def _log_call(call: ast.Call, level: str, logger: ast.expr) -> LogCall:
    (event,) = call.args
    bound = [keyword for node in ast.walk(logger) if isinstance(node, ast.Call) for keyword in node.keywords]
    names = [keyword.arg for keyword in (*bound, *call.keywords)]
    return LogCall(str(ast.literal_eval(event)), level, tuple(name for name in names if name), None in names)
