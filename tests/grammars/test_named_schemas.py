"""Grammars that are made of schemas which somebody else wrote: what is wrong with one of those is told by its name."""

import json

import pytest

from engine.errors import InvalidFieldError
from engine.grammars.json_schemas import MAX_OPTIONAL_PROPERTIES, require_narrow
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind, GrammarSource, NamedSchema

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
WIDE = {"properties": {str(number): {} for number in range(MAX_OPTIONAL_PROPERTIES + 1)}}

DRAFT_4 = "http://json-schema.org/draft-04/schema"  # the library has it built in


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (WIDE, "at most 256 properties"),
        ({"type": "object", "if": {"required": ["a"]}}, "cannot be held to"),
        ({"x-guidance": {"lenient": True}}, "x-guidance may set"),
        ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "cannot be held to"),
        ({"$ref": "#"}, "cannot be held to"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "cannot be held to"),
        ({"$ref": f"{DRAFT_4}#/definitions/positiveInteger"}, "cannot be followed"),
    ],
)
async def test_of_the_schemas_in_a_grammar_the_one_that_is_to_blame_is_named(grammars, bad, words):
    parts = (NamedSchema("tools[0]", json.dumps(SCHEMA)), NamedSchema("tools[1]", json.dumps(bad)))
    source = GrammarSource(GrammarKind.LARK, f"start: %json {json.dumps({'anyOf': [SCHEMA, bad]})}", parts)
    with pytest.raises(InvalidFieldError, match=words) as refused:
        await grammars.compile(source)
    assert refused.value.field == "tools[1]"


async def test_the_same_grammar_is_refused_by_the_names_of_each_who_asks(grammars):
    wide = json.dumps(WIDE)
    for field in ("tools[0]", "tools[1]"):
        with pytest.raises(InvalidFieldError) as refused:
            await grammars.compile(GrammarSource(GrammarKind.LARK, f"start: %json {wide}", (NamedSchema(field, wide),)))
        assert refused.value.field == field


async def test_a_wide_schema_inside_a_grammar_is_refused_as_one_by_itself_is(grammars):
    lark = f'start: "x" body\nbody: %json {json.dumps(WIDE)}'
    with pytest.raises(InvalidFieldError, match="at most 256 properties") as refused:
        await grammars.compile(GrammarSource(GrammarKind.LARK, lark))
    assert refused.value.field == "sampling.grammar.lark"


def properties(letter: str, number: int) -> dict:
    return {f"{letter}{index}": {"type": "integer"} for index in range(number)}


def kinds(number: int, each: int) -> dict:
    """Alternatives that the value of their first property tells apart."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"k{index}"}, **properties("p", each)},
                "required": ["kind"],
            }
            for index in range(number)
        ]
    }


def either(number: int, beside: int = 0) -> dict:
    """Two objects of that many properties, each with those that stand beside both."""
    objects = [{"type": "object", "properties": properties(letter, number)} for letter in "ab"]
    return {"anyOf": objects} | ({"type": "object", "properties": properties("o", beside)} if beside else {})


def referring(number: int) -> dict:
    parts = {letter: {"type": "object", "properties": properties(letter, number)} for letter in "ab"}
    return {"$defs": parts, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}


def both(number: int) -> dict:
    return {"allOf": [{"type": "object", "properties": properties(letter, number)} for letter in "ab"]}


def source_of(schema: dict) -> GrammarSource:
    """Of an object whose only property follows `schema`."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    outer = {"type": "object", "properties": {"x": inner}, "required": ["x"], "additionalProperties": False}
    return GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(outer | {"$defs": schema.get("$defs", {})}))


@pytest.mark.parametrize(
    ("narrow", "wide", "text"),
    [
        (either(237), either(238), '{"a0": 1, "a1": 2}'),
        (either(118, beside=118), either(120, beside=120), '{"o0": 1, "a1": 2}'),
        (referring(237), referring(238), '{"b0": 1}'),
        (both(237), both(238), '{"a0": 1, "b7": 2}'),
        (kinds(3, 256), kinds(3, 257), '{"kind": "k1", "p7": 1}'),
    ],
)
async def test_what_is_refused_for_its_width_is_what_could_not_be_written(grammars, narrow, wide, text):
    """At the limit a document is written, byte for byte; beyond it the schema is refused at once."""
    compiled = await grammars.compile(source_of(narrow))
    matcher = Constraint(compiled).begin(f'{{"x": {text}}}'.encode())
    assert not matcher.problem
    assert matcher.is_complete
    with pytest.raises(InvalidFieldError, match=r"open at once|at most 256"):
        await grammars.compile(source_of(wide))


async def test_a_schema_that_is_a_part_of_itself_is_no_wider_for_that(grammars):
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    }
    compiled = await grammars.compile(GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(tree)))
    assert not Constraint(compiled).begin(b'{"left": {"right": null}}').problem


def test_alternatives_of_alternatives_are_counted_without_going_through_all_of_them():
    """Each doubles those of the one below: 2 to the 60th forms."""
    parts = {f"p{level}": {"anyOf": [{"$ref": f"#/$defs/p{level + 1}"}] * 2} for level in range(60)}
    with pytest.raises(InvalidFieldError, match="open at once"):
        require_narrow({"$defs": parts | {"p60": {"type": "null"}}, "$ref": "#/$defs/p0"}, "field")


def test_what_is_nested_too_deeply_is_refused():
    deep: dict = {}
    for _ in range(5_000):
        deep = {"allOf": [deep]}
    with pytest.raises(InvalidFieldError, match="nested too deeply"):
        require_narrow(deep, "field")
