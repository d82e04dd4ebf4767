"""References in a schema, however they are written: what they mean is counted, or they are refused."""

import json
from contextlib import nullcontext

import pytest

from engine.errors import InvalidFieldError
from engine.grammars.json_schemas import require_followed, require_narrow
from engine.grammars.matcher import Constraint
from engine.grammars.references import MAX_MEANINGS
from engine.grammars.source import GrammarKind, GrammarSource

WIDEST = 237  # properties that need not be there, in each of two alternatives
ID = "https://example.org/city"
DRAFT_4 = "http://json-schema.org/draft-04/schema"  # the library has it built in


def source(schema: dict) -> GrammarSource:
    return GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def either(number: int, references: tuple[str, str], parts: dict, **beside: object) -> dict:
    """Either of two parts, `parts` but for the properties, which are that many each."""
    for letter, part in zip("ab", parts.values(), strict=True):
        names = (f"{letter}{index}" for index in range(number))
        part |= {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    return {"anyOf": [{"$ref": reference} for reference in references], "$defs": parts, **beside}


def escaped(number: int) -> dict:
    return either(number, ("#/$defs/a%20%25", "#/%24defs/b%7e1~0"), {"a %": {}, "b/~": {}})


def anchored(number: int) -> dict:
    return either(number, ("#n0", "#n1"), {"a": {"$anchor": "n0"}, "b": {"$anchor": "n1"}})


def absolute(number: int) -> dict:
    return either(number, (f"{ID}#/$defs/a", "/city#n1"), {"a": {}, "b": {"$anchor": "n1"}}, **{"$id": ID})


def resources(number: int) -> dict:
    return either(number, ("a", "https://example.org/b#"), {"a": {"$id": "a"}, "b": {"$id": "./b"}}, **{"$id": ID})


def nameless(number: int) -> dict:
    """Relative to no name at all."""
    return either(number, ("a", "x/../b#n1"), {"a": {"$id": "a"}, "b": {"$id": "b", "$anchor": "n1"}})


def opaque(number: int) -> dict:
    return either(number, ("urn:x#/$defs/a", "#/$defs/b"), {"a": {}, "b": {}}, **{"$id": "urn:x"})


def old(number: int) -> dict:
    parts = {"a": {"id": "#n0"}, "b": {"id": "b"}}
    return either(number, ("#n0", "b"), parts, id=ID, **{"$schema": f"{DRAFT_4}#"})


@pytest.mark.parametrize("referring", [escaped, anchored, absolute, resources, nameless, opaque, old])
async def test_what_is_referred_to_is_counted_however_it_is_named(grammars, referring):
    """At the limit a document is written, byte for byte; beyond it the schema is refused at once."""
    matcher = Constraint(await grammars.compile(source(referring(WIDEST)))).begin(b'{"b0": 1}')
    assert not matcher.problem
    assert matcher.is_complete
    with pytest.raises(InvalidFieldError, match="open at once"):
        await grammars.compile(source(referring(WIDEST + 1)))


def test_of_what_a_reference_may_mean_the_widest_counts():
    """Here a part of the resource that the reference stands in, or one of the document."""
    inner = {"$id": "in", "anyOf": [{"$ref": "#/$defs/y"}] * 2, "$defs": {"y": {}}}
    for number, is_refused in ((WIDEST, False), (WIDEST + 1, True)):
        wide = {"properties": {f"a{index}": {} for index in range(number)}}
        with pytest.raises(InvalidFieldError, match="open at once") if is_refused else nullcontext():
            require_narrow({"items": inner, "$defs": {"y": wide}}, "field")


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"$ref": f"{DRAFT_4}#/definitions/positiveInteger"}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "json-schema:///#/$defs/b"}, "b": {}}},
        {"$id": "other://host/x", "anyOf": [{"$ref": "y"}], "$defs": {"a": {"$id": "y"}}},
        {"allOf": [{"$ref": "#/$defs/0"}], "$defs": {str(n): {"$id": f"id{n}"} for n in range(MAX_MEANINGS)}},
    ],
)
async def test_a_reference_that_cannot_be_followed_is_refused_by_name(grammars, schema):
    with pytest.raises(InvalidFieldError, match="cannot be followed") as refused:
        await grammars.compile(source(schema))
    assert refused.value.field == "sampling.grammar.json_schema"


async def test_in_a_grammar_it_is_refused_too(grammars):
    lark = f'start: %json {{"$ref": "{DRAFT_4}#/definitions/positiveInteger"}}'
    with pytest.raises(InvalidFieldError, match="cannot be followed") as refused:
        await grammars.compile(GrammarSource(GrammarKind.LARK, lark))
    assert refused.value.field == "sampling.grammar.lark"


async def test_in_a_grammar_one_that_is_no_address_is_the_clients_fault(grammars):
    with pytest.raises(InvalidFieldError) as refused:
        await grammars.compile(GrammarSource(GrammarKind.LARK, 'start: %json {"$ref": "http://[#x"}'))
    assert refused.value.field == "sampling.grammar.lark"


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("#/$defs/none", "does not exist"),
        ("#none", "Anchor 'none' does not exist"),
        ("https://example.org/other", "retrieving it failed"),
        ("#/$defs/a b", "Invalid URI reference"),
        ("http://[#x", "Invalid URI reference"),
        (7, "must be a string"),
    ],
)
async def test_of_what_the_library_refuses_it_says_so_itself(grammars, reference, words):
    with pytest.raises(InvalidFieldError, match=words):
        await grammars.compile(source({"items": {"$ref": reference}, "$defs": {"a b": {}}}))


@pytest.mark.parametrize("reference", ["#", "", "#top", ID, f"{ID}#top"])
async def test_a_schema_may_be_a_part_of_itself_by_any_name(grammars, reference):
    tree = {"$id": ID, "$anchor": "top", "type": "object", "properties": {"left": {"$ref": reference}}}
    compiled = await grammars.compile(source(tree))
    assert Constraint(compiled).begin(b'{"left": {"left": {}}').problem == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [{"$ref": "https://example.org/other"}]},
        {"properties": {"a": {"const": {"$ref": "#none"}}, "$ref": {"type": "string"}}},
        {"type": "string", "examples": [{"$ref": "#none"}], "$defs": {"unused": {"$ref": "#/none"}}},
    ],
)
async def test_what_is_no_reference_of_a_written_part_is_none(grammars, schema):
    await grammars.compile(source(schema))
    require_followed(schema, "field")
