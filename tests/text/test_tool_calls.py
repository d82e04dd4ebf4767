"""Calls in outputs: found in each family's form, the same for every way of cutting the text, and text where none."""

import json
import random

import pytest

from gateway.tokenizer.tools import FoundCall, ToolCallParser
from gateway.tokenizer.tools.styles import HERMES, LLAMA, MISTRAL, SMOLLM

NAMES = frozenset({"add", "get_weather"})
WEATHER = FoundCall("get_weather", '{"city": "Köln", "note": "a}\\"]<b"}')
ADD = FoundCall("add", '{"x": 1, "y": [2, {"z": 3}]}')


def written(style, call):
    return json.dumps({"name": call.name, style.arguments_name: json.loads(call.arguments)}, ensure_ascii=False)


def parse(style, *pieces, is_single=False):
    """Text and calls, neighbouring texts joined."""
    parser = ToolCallParser(style, NAMES, is_single=is_single)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    joined = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    assert parser.num_calls == sum(isinstance(part, FoundCall) for part in joined)
    return joined


OUTPUTS = [
    (HERMES, f"<tool_call>\n{written(HERMES, WEATHER)}\n</tool_call>", [WEATHER]),
    (
        HERMES,
        f"Let me see.\n\n<tool_call>\n{written(HERMES, WEATHER)}\n</tool_call>\n"
        f"<tool_call>{written(HERMES, ADD)}</tool_call>\n",
        ["Let me see.", WEATHER, ADD],
    ),
    (HERMES, f"<tool_call>{written(HERMES, ADD)}</tool_call> Done.", [ADD, " Done."]),
    (HERMES, f"<tool_call>{written(HERMES, ADD)}", [ADD]),
    (SMOLLM, f"<tool_call>[{written(SMOLLM, ADD)}, {written(SMOLLM, WEATHER)}]</tool_call>", [ADD, WEATHER]),
    (MISTRAL, f"[TOOL_CALLS] [{written(MISTRAL, ADD)},{written(MISTRAL, WEATHER)}]", [ADD, WEATHER]),
    (MISTRAL, f"Well [TOOL_CALLS][{written(MISTRAL, ADD)}]", ["Well", ADD]),
    (LLAMA, written(LLAMA, WEATHER), [WEATHER]),
    (LLAMA, f"\n {written(LLAMA, WEATHER)}; {written(LLAMA, ADD)}", [WEATHER, ADD]),
    (LLAMA, f"<|python_tag|>{written(LLAMA, ADD)}", [ADD]),
    (LLAMA, f"Sure: <|python_tag|>{written(LLAMA, ADD)}", ["Sure:", ADD]),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', [FoundCall("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"x\\": 1}"}</tool_call>', [FoundCall("add", '{"x": 1}')]),
    (MISTRAL, '[TOOL_CALLS][{"function": {"name": "add", "arguments": {}}}]', [FoundCall("add", "{}")]),
    (HERMES, "plain [text] with {braces} and <tool", ["plain [text] with {braces} and <tool"]),
    (HERMES, "  \n ends blank \n ", ["  \n ends blank \n "]),
    (HERMES, "", []),
    (
        HERMES,
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'],
    ),
    (HERMES, " <tool_call>{broken}</tool_call>", [" <tool_call>{broken}</tool_call>"]),
    (HERMES, '<tool_call>\n{"name": "add", "argum', ['<tool_call>\n{"name": "add", "argum']),
    (HERMES, "<tool_call> is a tag", ["<tool_call> is a tag"]),
    (HERMES, "<tool_call></tool_call>x", ["<tool_call></tool_call>x"]),
    (LLAMA, '{"answer": 42}', ['{"answer": 42}']),
    (LLAMA, "It is {odd}", ["It is {odd}"]),
    (MISTRAL, "[TOOL_CALLS][1, 2]", ["[TOOL_CALLS][1, 2]"]),
]


@pytest.mark.parametrize(("style", "output", "parts"), OUTPUTS)
def test_calls_and_texts_are_told_apart(style, output, parts):
    assert parse(style, output) == parts


@pytest.mark.parametrize("seed", range(40))
def test_parts_do_not_depend_on_how_an_output_is_cut(seed):
    rng = random.Random(seed)
    for style, output, _ in OUTPUTS:
        cuts = sorted(rng.randrange(len(output) + 1) for _ in range(rng.randint(0, 12)))
        pieces = [output[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(output)], strict=True)]
        for is_single in (False, True):
            assert parse(style, *pieces, is_single=is_single) == parse(style, output, is_single=is_single)


def test_text_that_cannot_be_a_call_is_not_held_back():
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push("Hello <b") == ["Hello <b"]
    assert parser.push(" and <tool_ca") == [" and"]
    assert parser.push("ke>") == [" <tool_cake>"]
    assert parser.push(f"<tool_call>{written(HERMES, ADD)}") == [ADD]


def test_nothing_follows_the_only_call_that_is_allowed():
    both = f"<tool_call>[{written(SMOLLM, ADD)}, {written(SMOLLM, WEATHER)}]</tool_call> and more"
    assert parse(SMOLLM, both, is_single=True) == [ADD]
    assert parse(HERMES, f"a <tool_call>{written(HERMES, ADD)}</tool_call>b", is_single=True) == ["a", ADD]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_written_without_a_call_comes_out_as_it_went_in(seed):
    rng = random.Random(seed)
    alphabet = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        *'<[]{}"\\ \na\u00e9:,',
        '{"name": "no"}',
        "<|python_tag|>",
    ]
    text = "".join(rng.choice(alphabet) for _ in range(60))
    pieces = [text[index : index + 3] for index in range(0, len(text), 3)]
    for style in (HERMES, SMOLLM, MISTRAL, LLAMA):
        assert parse(style, *pieces) == [text]


def test_a_long_call_is_read_once():
    parser = ToolCallParser(HERMES, NAMES)
    body = json.dumps({"name": "add", "arguments": {"x": "y" * 200_000}})
    parts = []
    for index in range(0, len(body), 4):
        parts += parser.push(("<tool_call>" if index == 0 else "") + body[index : index + 4])
    assert [len(part.arguments) for part in parts] == [200_000 + len('{"x": ""}')]
