"""Small faults that a programmer could make: one site of one module's syntax tree changed at a time.

A mutant's name is stable while its function is: module, function, and the text before and after.
"""

import ast
import copy
from collections import abc
from dataclasses import dataclass
from pathlib import Path

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """The `index`th fault of a module."""

    module: str
    index: int
    name: str
    line: int


def find_mutants(module: str, path: Path) -> list[Mutant]:
    """Every fault of the module, in source order."""
    tree = ast.parse(path.read_text())
    mutants = []
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for index, (function, node, replacement) in enumerate(_sites(tree)):
        if isinstance(replacement, ast.Pass):
            name = f"{module} {function}: without `{ast.unparse(node)}`"
        else:
            name = f"{module} {function}: `{ast.unparse(node)}` -> `{ast.unparse(replacement)}`"
        if isinstance(node, ast.Constant):
            name += f" in `{ast.unparse(parents[node])}`"
        mutants.append(Mutant(module, index, " ".join(name.split()), node.lineno))
    return mutants


def mutate(source: bytes, index: int) -> ast.Module:
    """The syntax tree with its `index`th fault."""
    tree = ast.parse(source)
    for position, (_, node, replacement) in enumerate(_sites(tree)):
        if position == index:
            return ast.fix_missing_locations(_Replacer(node, replacement).visit(tree))
    raise IndexError(f"no mutant {index}")


class _Replacer(ast.NodeTransformer):
    def __init__(self, node: ast.AST, replacement: ast.AST) -> None:
        self._node, self._replacement = node, ast.copy_location(replacement, node)

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replacement if node is self._node else self.generic_visit(node)


def _sites(tree: ast.Module) -> abc.Iterator[tuple[str, ast.AST, ast.AST]]:
    """Function, node and what takes its place. Only what runs: no annotation, docstring or message."""
    for function in _functions(tree, ""):
        name, body = function
        for statement in body:
            yield from _in_node(name, statement)


def _functions(node: ast.AST, prefix: str) -> abc.Iterator[tuple[str, list[ast.stmt]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield f"{prefix}{child.name}", child.body


def _in_node(function: str, node: ast.AST) -> abc.Iterator[tuple[str, ast.AST, ast.AST]]:
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    for replacement in _replacements(node):
        yield function, node, replacement
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "op", "ops"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _in_node(function, child)


def _replacements(node: ast.AST) -> abc.Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            yield _with(node, ops=[SWAPS[type(operator)]()])
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in SWAPS:
            yield _with(node, op=SWAPS[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield _with(node, func=ast.Name(NAMES[name], ast.Load()))
        case ast.IfExp(body=body, orelse=orelse):
            yield _with(node, body=orelse, orelse=body)
        case ast.Constant():
            yield from _other_constants(node)
        case ast.stmt():
            yield from _other_statements(node)


def _other_constants(node: ast.Constant) -> abc.Iterator[ast.AST]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)


def _other_statements(node: ast.stmt) -> abc.Iterator[ast.AST]:
    match node:
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.If(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp | ast.BoolOp):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Continue() | ast.Break():
            yield ast.Pass()


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
