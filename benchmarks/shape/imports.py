"""Imports among the modules of the product: circles, and imports that run upwards.

Every import statement counts, those inside functions and those for type checkers included. `from package import
name` is an import of the module `package.name` where there is one, else of `package`. The packages above an imported
module do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TypeVar

from benchmarks.shape.tree import Module

Node = TypeVar("Node", bound=Hashable)
Graph = Mapping[Node, Set[Node]]


def import_graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, by name."""
    names = {module.name for module in modules}
    return {module.name: set(_imports(module, names)) - {module.name} for module in modules}


def circles(graph: Graph[Node]) -> set[frozenset[Node]]:
    """Return the groups of two or more nodes from each of which every other one is reached."""
    reached = {node: _reachable(node, graph) for node in graph}
    groups = {frozenset(other for other in reached[node] if node in reached[other]) for node in graph}
    return {group for group in groups if len(group) > 1}


def upwards(modules: Sequence[Module], package: str) -> list[tuple[str, str]]:
    """Return the imports of a folder's modules that lead to a loose module of the package, and from there back.

    They lead back when the folder and the loose module are on one circle of places; each loose module is one place.
    """
    inside = {module.name: module for module in modules if module.name.split(".")[0] == package}
    edges = [(name, to) for name, targets in import_graph(list(inside.values())).items() for to in targets]
    rounds = circles(_place_graph(inside, edges))
    return [
        (name, to)
        for name, to in edges
        if inside[to].is_loose and not inside[name].is_loose
        if any({inside[name].place, inside[to].place} <= circle for circle in rounds)
    ]


def _place_graph(inside: Mapping[str, Module], edges: Sequence[tuple[str, str]]) -> dict[Path, set[Path]]:
    graph: dict[Path, set[Path]] = {module.place: set() for module in inside.values()}
    for name, to in edges:
        graph[inside[name].place].add(inside[to].place)
    return graph


def _imports(module: Module, names: Set[str]) -> Iterator[str]:
    for node in ast.walk(module.syntax):
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if alias.name in names)
            case ast.ImportFrom(module=str(origin), names=aliases):
                found = (f"{origin}.{alias.name}" for alias in aliases)
                yield from (name if name in names else origin for name in found if {name, origin} & names)
            case _:
                pass


def _reachable(start: Node, graph: Graph[Node]) -> set[Node]:
    reached: set[Node] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()]:
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached
