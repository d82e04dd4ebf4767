"""Runs a model's chat template as what it is: a program from a file that someone else wrote.

Jinja2's immutable sandbox keeps it from Python's internals and from changing what it is given. On top of that it has a
budget: loop iterations, ranges and macro calls cost steps, and no string or list that it builds may grow past a cap, so
that it ends in bounded time and memory. Not bounded are single calls of formatting filters with a huge width.

The dialect is the one that chat templates are written in (Hugging Face `apply_chat_template`): trimmed blocks, loop
controls, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, `{% generation %}` marks.
"""

import json
from collections import abc
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from gateway.tokenizer.prompt_bound import MAX_PROMPT_CHARACTERS

MAX_STEPS = 200_000
"""Some tenths of a second, and 200 for each message of a conversation of 1,000."""

MAX_SIZE = MAX_PROMPT_CHARACTERS
"""Characters of a string, items of a list."""

MAX_INTEGER_BITS = 4096


@dataclass(slots=True)
class _Budget:
    """What the render that runs in this context may still do. Written by `spend` only."""

    num_steps_left: int = MAX_STEPS

    def spend(self, num_steps: int) -> None:
        self.num_steps_left -= num_steps
        if self.num_steps_left < 0:
            raise SecurityError("the chat template does not end within its budget of steps")


_budget: ContextVar[_Budget] = ContextVar("template_budget")


class TemplateRefusalError(TemplateError):
    """The template called `raise_exception`: the messages are not what it accepts."""


class ChatSandbox(ImmutableSandboxedEnvironment):
    """The environment of one template."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        # The output is a prompt, not HTML.
        super().__init__(trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=EXTENSIONS)
        del self.globals["lipsum"]  # random text without bound
        self.filters["tojson"] = _tojson
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, range=_range)

    def compile_template(self, source: str) -> tuple[Template, str, frozenset[str]]:
        """The template, all literal text in it joined by NUL, and the variables that it reads.

        Raises jinja2.TemplateError.
        """
        tree = self.parse(source)
        literals = [node.data for node in tree.find_all(nodes.TemplateData)]
        literals += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
        names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
        return self.from_string(_Metering().visit(tree)), "\0".join(literals), names

    def spend_step(self) -> bool:
        """Always true, so that it can stand in a condition. Raises SecurityError when the budget is used up."""
        _budget.get().spend(1)
        return True

    def join_parts(self, *parts: object) -> str:
        """The template's `~`."""
        return _concat([str(part) for part in parts])

    @staticmethod
    def concat(parts: abc.Iterable[str]) -> str:
        """Joins the output of captured blocks and macros."""
        return _concat(list(parts))

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> Any:  # Any: Jinja2's own
        """The result, if its size is within bounds. Raises SecurityError otherwise."""
        match operator, left, right:
            case "+", (str() | list() | tuple()), (str() | list() | tuple()):
                _check_size(len(left) + len(right))
            case ("*", (str() | list() | tuple()) as repeated, int(times)) | (
                "*",
                int(times),
                (str() | list() | tuple()) as repeated,
            ):
                _check_size(len(repeated) * times)
            case "*", int(), int():
                _check_bits(left.bit_length() + right.bit_length())
            case "**", int(), int():
                _check_bits(left.bit_length() * max(0, right))
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it means nothing."""

    tags = {"generation"}  # noqa: RUF012 -- Jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


EXTENSIONS = (_Generation, "jinja2.ext.loopcontrols")


class _Metering(NodeTransformer):
    """Makes every loop iteration, also a filtered one, and every macro call spend a step, and `~` check its size.

    The calls go to the environment, which a template has no name for and so cannot replace.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 -- dispatched by node name
        self.generic_visit(node)
        if node.test is None:
            node.body.insert(0, _step_statement(node.lineno))
        else:
            node.test = nodes.And(_step_call(node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802 -- dispatched by node name
        self.generic_visit(node)
        node.body.insert(0, _step_statement(node.lineno))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802 -- dispatched by node name
        self.generic_visit(node)
        node.body.insert(0, _step_statement(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 -- dispatched by node name
        self.generic_visit(node)
        return _environment_call("join_parts", node.nodes, node.lineno)


def render_parts(template: Template, variables: abc.Mapping[str, object]) -> abc.Iterator[str]:
    """The output piece by piece, within a fresh budget. Raises whatever the template does."""
    _budget.set(_Budget())
    yield from template.generate(variables)


def _step_statement(lineno: int) -> nodes.Stmt:
    return nodes.ExprStmt(_step_call(lineno), lineno=lineno)


def _step_call(lineno: int) -> nodes.Expr:
    return _environment_call("spend_step", [], lineno)


def _environment_call(method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Expr:
    target = nodes.EnvironmentAttribute(method, lineno=lineno)
    return nodes.Call(target, arguments, [], None, None, lineno=lineno)


def _concat(parts: list[str]) -> str:
    _check_size(sum(map(len, parts)))
    return "".join(parts)


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"the chat template builds a value of more than {MAX_SIZE} items")


def _check_bits(num_bits: int) -> None:
    if num_bits > MAX_INTEGER_BITS:
        raise SecurityError(f"the chat template builds a number of more than {MAX_INTEGER_BITS} bits")


def _range(*arguments: int) -> range:
    result = range(*arguments)
    _budget.get().spend(len(result))
    return result


def _raise_exception(message: str) -> None:
    raise TemplateRefusalError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)


def _tojson(  # the parameters are the dialect's
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
