"""The check that Toolscale's packages come from one installation.

`python -m` and `celery -A` prefer packages of the current directory. A package there may have the name of ours, so
the other packages run this file by its path.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def refuse_others(*names: str) -> None:
    """End the process with a sentence on stderr if a package of these names is not of this installation."""
    for name in names:
        own = Path(__file__).parents[1] / name / "__init__.py"
        found = find_spec(name)
        if found is None or found.origin is None or not own.samefile(found.origin):
            other = found and found.origin
            sys.exit(f"error: the package `{name}` is loaded from {other}, not from {own}: use another directory")
