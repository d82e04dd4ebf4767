"""The scheduler and the policies are pure: what they may import is a short list, so that nothing else can slip in."""

import ast
from collections import abc
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PURE = {
    "bisect",
    "collections",
    "contextlib",
    "dataclasses",
    "enum",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "typing",
}
PURE |= {"io", "pickle"}  # in memory, to ask a copy of a policy
PURE |= {"array", "hashlib"}  # what a block holds, as a name
FILES = [*(ROOT / "engine/core").rglob("*.py"), *(ROOT / "policies").rglob("*.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_scheduler_and_policies_import_pure_modules_and_the_core_only(path: Path):
    own = ("engine.core", "policies") if path.is_relative_to(ROOT / "policies") else ("engine.core",)
    foreign = {
        name
        for name in imported(path.read_text())
        if name.partition(".")[0] not in PURE and not any(name == root or name.startswith(f"{root}.") for root in own)
    }

    assert not foreign


@pytest.mark.parametrize("line", ["import random", "from engine.sim import run", "from time import time", "import os"])
def test_other_imports_are_noticed(line: str):
    (name,) = imported(f"def late():\n    {line}\n")

    assert name.partition(".")[0] not in PURE


def imported(source: str) -> abc.Iterator[str]:
    """The absolute names of all modules that `source` imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
