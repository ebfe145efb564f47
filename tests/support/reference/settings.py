"""`.env.example`: every setting with its default and its meaning, in the sections of `shared/settings.py`."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import cast

from pydantic import AliasChoices

from shared import settings
from shared.settings import PREFIX, Settings

# Below this line stand the variables that are no settings; people write them.
END = "# --- Traces ---"
HEAD = """\
# Every setting with its default; `make docs` writes this part from shared/settings.py.
# Copy this file to `.env`, which Docker Compose reads, and change the values you need.
# Without Compose, export the variables. An empty value counts as unset. A name that ends in _S is in seconds.
"""
_SECTION = re.compile(r"^    (# --- .+ ---)$")


def render(document: str) -> str:
    """Return the example; the part from `END` on is kept."""
    return "\n".join([HEAD, *_blocks(), END + document.partition(END)[2]])


def _blocks() -> Iterator[str]:
    lines = inspect.getsource(settings).splitlines()
    titles = {number: match[1] for number, line in enumerate(lines, 1) if (match := _SECTION.match(line))}
    for field, (line, meaning) in _fields().items():
        for number in [number for number in titles if number < line]:
            yield titles.pop(number) + "\n"
        yield f"# {meaning}\n# {variable(field)}={default(field)}\n"


def _fields() -> dict[str, tuple[int, str]]:
    """Return the line and the docstring of each setting, in the order of the class."""
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == Settings.__name__
    )
    return {
        field.target.id: (field.lineno, str(doc.value.value))
        for field, doc in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    }


def variable(field: str) -> str:
    """Return the variable that sets a field: the first alias, else the prefix and the field's name."""
    alias = Settings.model_fields[field].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else f"{PREFIX}{field.upper()}"


def default(field: str) -> str:
    """Return the default as the environment would hold it; "" for none."""
    value: object = Settings.model_fields[field].default
    if isinstance(value, frozenset):
        return ",".join(sorted(cast("frozenset[str]", value)))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
