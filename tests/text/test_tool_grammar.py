"""Grammars of calls, as the engine compiles them: what a family writes is accepted, and read back as it was meant."""

import asyncio
import json

import pytest

from engine.grammars.compiler import GrammarCompiler, Vocabulary
from engine.grammars.matcher import Constraint
from engine.grammars.source import GrammarKind, GrammarSource
from gateway.tokenizer.tools import FoundCall, Tool, ToolCallParser
from gateway.tokenizer.tools.grammar import CallGrammar
from gateway.tokenizer.tools.styles import HERMES, LLAMA, MISTRAL, SMOLLM
from tests.gateway.fake_engine import END_TOKEN, VOCABULARY_SIZE, byte_tokenizer_json

STYLES = [HERMES, LLAMA, MISTRAL, SMOLLM]
POINT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"axis": {"type": "integer", "minimum": 0, "maximum": 9}},
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/axis"}, "y": {"$ref": "#/$defs/axis"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
TOOLS = [Tool("now", "", ""), Tool("move", "To a point.", json.dumps(POINT))]
NAMES = frozenset({"now", "move"})


@pytest.fixture(scope="module")
def grammars():
    return GrammarCompiler(Vocabulary(byte_tokenizer_json(), VOCABULARY_SIZE, (END_TOKEN,)))


def accepts(grammars, lark, text):
    compiled = asyncio.run(grammars.compile(GrammarSource(GrammarKind.LARK, lark)))
    matcher = Constraint(compiled).begin(text.encode())
    return not matcher.problem and (matcher.is_complete or matcher.inner.is_accepting())


def call(style, name, arguments):
    return json.dumps({"name": name, style.arguments_name: arguments})


def written(style, *calls):
    """Calls as the family writes them."""
    if style.is_list:
        return f"{style.begin}{style.gap}[{', '.join(calls)}]{style.gap}{style.end}"
    return style.separator.join(f"{style.begin}{style.gap}{each}{style.gap}{style.end}" for each in calls)


def found(style, text):
    parser = ToolCallParser(style, NAMES)
    return parser.push(text) + parser.finish()


@pytest.mark.parametrize("style", STYLES)
def test_calls_in_the_familys_form_are_all_that_is_accepted(grammars, style):
    lark = CallGrammar(style, TOOLS, {}, is_single=False).calls_only()
    move, now = call(style, "move", {"x": 1, "y": 9}), call(style, "now", {})
    for calls in ([move], [now], [now, move, now]):
        text = written(style, *calls)
        assert accepts(grammars, lark, text)
        assert all(isinstance(part, FoundCall) for part in found(style, text))
        assert len(found(style, text)) == len(calls)
    for bad in (
        written(style, call(style, "fly", {})),
        written(style, call(style, "move", {"x": 1})),
        written(style, call(style, "move", {"x": 1, "y": 10})),
        written(style, call(style, "now", {"zone": 1})),
        "Hello",
        "",
    ):
        assert not accepts(grammars, lark, bad)


@pytest.mark.parametrize("style", STYLES)
def test_one_call_is_all_where_several_are_not_wanted(grammars, style):
    lark = CallGrammar(style, TOOLS, {}, is_single=True).calls_only()
    now = call(style, "now", {})
    assert accepts(grammars, lark, written(style, now))
    assert not accepts(grammars, lark, written(style, now, now))


@pytest.mark.parametrize("style", STYLES)
def test_an_answer_or_a_call(grammars, style):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    lark = CallGrammar(style, TOOLS, {}, is_single=False).calls_or_answer(json.dumps(schema))
    assert accepts(grammars, lark, '{"sum": 3}')
    assert accepts(grammars, lark, written(style, call(style, "move", {"x": 1, "y": 2})))
    assert not accepts(grammars, lark, '{"product": 3}')
    assert not accepts(grammars, lark, "three")


@pytest.mark.parametrize("style", STYLES)
def test_what_begins_as_a_call_goes_on_as_one(grammars, style):
    lark = CallGrammar(style, TOOLS, {}, is_single=False).free()
    move = call(style, "move", {"x": 1, "y": 2})
    wrong = call(style, "move", {"x": 1, "z": 2})
    assert accepts(grammars, lark, "Plain < text, [of] any kind.\n")
    assert accepts(grammars, lark, written(style, move))
    assert not accepts(grammars, lark, written(style, wrong))
    if style.begin:
        assert accepts(grammars, lark, f"Well: {written(style, move)} Done.")
        assert not accepts(grammars, lark, f"Well: {written(style, wrong)}")


def test_markers_that_are_tokens_are_drawn_as_tokens(grammars):
    lark = CallGrammar(HERMES, TOOLS, {"<tool_call>": 257, "</tool_call>": END_TOKEN}, is_single=True)
    text = lark.calls_only()
    assert "<[257]>" in text
    assert '"<tool_call>"' not in text
    compiled = asyncio.run(grammars.compile(GrammarSource(GrammarKind.LARK, lark.free())))
    body = f"\n{call(HERMES, 'now', {})}\n".encode()
    matcher = Constraint(compiled).begin([*b"a <tool_call>", 257, *body])
    assert not matcher.problem
    assert Constraint(compiled).begin([257, *b'\n{"name": "fly']).problem


def test_a_schema_that_is_no_good_is_refused_with_its_own_words(grammars):
    bad = [Tool("f", "", '{"type": "object", "properties": {"a": {"type": "strin"}}}')]
    with pytest.raises(Exception, match="strin"):
        accepts(grammars, CallGrammar(HERMES, bad, {}, is_single=False).calls_only(), "")


ORIGIN = "https://example.com/schemas/point.json"
NAMED = {
    "an anchor": {"$ref": "#axis", "$defs": {"axis": {"$anchor": "axis", "type": "integer", "maximum": 9}}},
    "a name of its own": {"$id": ORIGIN, "$ref": "#/$defs/axis", "$defs": {"axis": {"type": "integer", "maximum": 9}}},
    "its own name": {
        "$id": ORIGIN,
        "$ref": "point.json#/$defs/axis",
        "$defs": {"axis": {"type": "integer", "maximum": 9}},
    },
    "a part with a name": {
        "$id": ORIGIN,
        "$ref": "axis.json#/$defs/digit",
        "$defs": {"axis": {"$id": "axis.json", "$defs": {"digit": {"type": "integer", "maximum": 9}}}},
    },
    "an older draft": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/axis",
        "definitions": {"axis": {"type": "integer", "maximum": 9}},
    },
}


def tool_of(name: str, x: dict) -> Tool:
    """Its one argument follows `x`, whose definitions and names are those of the whole schema."""
    at_top = {key: value for key, value in x.items() if key in ("$id", "$schema", "$defs", "definitions")}
    inner = {key: value for key, value in x.items() if key not in at_top}
    schema = {"type": "object", "properties": {"x": inner}, "required": ["x"], "additionalProperties": False}
    return Tool(name, "", json.dumps(at_top | schema))


@pytest.mark.parametrize("style", [HERMES, SMOLLM])
@pytest.mark.parametrize("kind", NAMED)
def test_what_a_schema_refers_to_is_in_it_whatever_it_is_called_there(grammars, style, kind):
    """The other tool has the same names for something else."""
    other = json.loads(json.dumps(NAMED[kind]).replace('"maximum": 9', '"maximum": 3'))
    tools = [tool_of("move", other), tool_of("now", NAMED[kind])]
    lark = CallGrammar(style, tools, {}, is_single=False).calls_only()
    assert accepts(grammars, lark, written(style, call(style, "now", {"x": 9}), call(style, "move", {"x": 3})))
    assert not accepts(grammars, lark, written(style, call(style, "now", {"x": 10})))
    assert not accepts(grammars, lark, written(style, call(style, "move", {"x": 4})))


def test_a_value_that_looks_like_a_reference_is_a_value(grammars):
    value = {"$ref": "#/properties/y"}
    lark = CallGrammar(HERMES, [tool_of("now", {"const": value})], {}, is_single=True).calls_only()
    assert accepts(grammars, lark, written(HERMES, call(HERMES, "now", {"x": value})))


@pytest.mark.parametrize("given", [None, {"whitespace_flexible": True}])
def test_json_is_in_one_line_unless_its_schema_says_otherwise(grammars, given):
    options = {} if given is None else {"x-guidance": given}
    tool = Tool("now", "", json.dumps(json.loads(tool_of("now", {"type": "integer"}).parameters) | options))
    grammar = CallGrammar(HERMES, [tool], {}, is_single=True)
    answer = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]} | options)
    spread = '{\n  "x": 1\n}'
    called = written(HERMES, f'{{"name": "now", "arguments": {spread}}}')
    assert accepts(grammars, grammar.calls_only(), called) is (given is not None)
    assert accepts(grammars, grammar.calls_or_answer(answer), spread) is (given is not None)
    assert accepts(grammars, grammar.calls_or_answer(answer), '{"x": 1}')
    assert accepts(grammars, grammar.calls_only(), written(HERMES, call(HERMES, "now", {"x": 1})))


def test_what_the_grammar_of_a_call_leaves_out_may_be_left_out(grammars):
    lark = CallGrammar(SMOLLM, TOOLS, {}, is_single=False).calls_only()
    dense = '{"name":"move","arguments":{"x":1,"y":2}}'
    assert accepts(grammars, lark, f"<tool_call>[{dense},{dense}]</tool_call>")


def test_as_many_tools_as_may_be_offered_are_told_apart(grammars):
    tools = [tool_of(f"tool-{number}", {"type": "integer"}) for number in range(128)]
    lark = CallGrammar(HERMES, tools, {}, is_single=False).calls_only()
    assert accepts(
        grammars, lark, written(HERMES, call(HERMES, "tool-12", {"x": 1}), call(HERMES, "tool-127", {"x": 2}))
    )
    assert not accepts(grammars, lark, written(HERMES, call(HERMES, "tool-128", {"x": 1})))
