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
