"""A whole Dockerfile: its arguments and its stages, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cloister.build.dockerfile import parse_dockerfile
from cloister.build.instructions import Arg, From, Instruction, parse_instructions
from cloister.model import quote


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it, up to the next."""

    start: From
    steps: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole Dockerfile: the arguments before the first FROM, and its stages."""

    arguments: tuple[Arg, ...]
    stages: tuple[Stage, ...]


def parse_recipe(data: bytes, file: str) -> Recipe:
    """Read a Dockerfile; `file` is what errors call it."""
    statements = parse_dockerfile(data, file)
    arguments: list[Arg] = []
    stages: list[tuple[From, list[Instruction]]] = []
    for instruction in parse_instructions(statements):
        if isinstance(instruction, From):
            stages.append((instruction, []))
        elif stages:
            stages[-1][1].append(instruction)
        elif isinstance(instruction, Arg):
            arguments.append(instruction)
        else:
            at = instruction.at
            raise at.wrong(f"{at.name} stands before the first FROM; only ARG may")
    if not stages:
        raise statements[-1].wrong("there is no FROM; begin with one")
    _require_unique(stage for stage, _ in stages)
    return Recipe(tuple(arguments), tuple(Stage(start, tuple(rest)) for start, rest in stages))


def _require_unique(starts: Iterator[From]) -> None:
    seen: set[str] = set()
    for start in starts:
        if start.stage in seen:
            raise start.at.wrong(f"a stage is called {quote(start.stage)} already")
        if start.stage is not None:
            seen.add(start.stage)
