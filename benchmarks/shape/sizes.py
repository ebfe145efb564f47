"""Sizes: lines, functions, public classes, settings, glossary rows and words of documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.shape.tree import Module

_GLOSSARY_ROW = re.compile(r"^\| \*\*", re.MULTILINE)


def lines(modules: Iterable[Module]) -> int:
    """Return the lines of all files, blank ones included."""
    return sum(module.source.count("\n") for module in modules)


def function_lengths(modules: Iterable[Module]) -> list[int]:
    """Return the lines of each function and method from `def` to its end, docstring not counted, in order."""
    return sorted(_length(node) for node in _nodes(modules) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def public_classes(modules: Iterable[Module]) -> int:
    """Return the number of classes, at any depth, whose name begins with a letter."""
    return sum(isinstance(node, ast.ClassDef) and not node.name.startswith("_") for node in _nodes(modules))


def settings(modules: Iterable[Module]) -> int:
    """Return the annotated fields of the class `Settings`."""
    classes = (node for node in _nodes(modules) if isinstance(node, ast.ClassDef) and node.name == "Settings")
    return sum(isinstance(statement, ast.AnnAssign) for node in classes for statement in node.body)


def glossary_rows(glossary: Path) -> int:
    """Return the rows that explain a word."""
    return len(_GLOSSARY_ROW.findall(glossary.read_text(encoding="utf-8")))


def document_words(documents: Iterable[Path]) -> int:
    """Return the words between white space, code included, as `wc -w` counts them."""
    return sum(len(document.read_text(encoding="utf-8").split()) for document in documents)


def _nodes(modules: Iterable[Module]) -> Iterator[ast.AST]:
    return (node for module in modules for node in ast.walk(module.syntax))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function, clean=False) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring
