"""The shape of the code: circles and upward imports are found, and lengths leave docstrings out."""

from __future__ import annotations

import ast

from benchmarks.shape import sizes
from benchmarks.shape.imports import circles, import_graph, upwards
from benchmarks.shape.tree import ROOT, Module


def module(path: str, source: str = "") -> Module:
    return Module(ROOT / path, source, ast.parse(source))


def test_a_circle_holds_the_nodes_that_reach_each_other() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}

    assert circles(graph) == {frozenset({"b", "c"})}


def test_an_import_of_a_name_is_one_of_the_module_it_names_or_comes_from() -> None:
    graph = import_graph(
        [
            module("query/__init__.py"),
            module("query/find.py", "import os\nfrom query import fit\nfrom query.fit import Fit\nfrom query import X"),
            module("query/fit.py"),
        ]
    )

    assert graph["query.find"] == {"query.fit", "query"}


def test_an_import_runs_upwards_when_the_loose_module_leads_back_to_the_folder() -> None:
    modules = [
        module("query/find.py", "from query.tools.tool import Tool"),
        module("query/caller.py"),
        module("query/tools/tool.py"),
        module("query/tools/find_tool.py", "from query.find import find\nfrom query.caller import Caller"),
    ]

    assert upwards(modules, "query") == [("query.tools.find_tool", "query.find")]


def test_the_length_of_a_function_leaves_its_docstring_out() -> None:
    source = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'

    assert sizes.function_lengths([module("query/find.py", source)]) == [2]


def test_settings_are_the_fields_of_the_class() -> None:
    source = (
        'class Settings:\n    config = 1\n    port: int = 1\n    """A port."""\n    host: str\n\nclass _Hidden: ...\n'
    )

    assert sizes.settings([module("shared/settings.py", source)]) == 2
    assert sizes.public_classes([module("shared/settings.py", source)]) == 1
