"""Chats through the model's template: equal to the reference, and what a bad or hostile template can do (little)."""

import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.tokenizer import (
    ChatMessage,
    ChatTemplateError,
    EmptyPromptError,
    InvalidTextError,
    PromptTooLargeError,
    SpecialTokens,
)
from gateway.tokenizer.chat_template import ChatTemplate
from tests.text.small_models import byte_level, load

CONVERSATIONS = [
    [("user", "What is the capital of France?")],
    [("system", "Answer in one word."), ("user", "And of Italy?")],
    [("user", "hi"), ("assistant", "Hello! How can I help?"), ("user", "  tell me\na joke\t")],
    [("system", ""), ("user", ""), ("assistant", ""), ("user", "naïve 東京 👩‍👩‍👧‍👦")],
    [("tool", '{"temperature": 21}'), ("user", "<b>&amp;</b> {{ 7 * 7 }} {% raw %}")],
]

LLAMA_LIKE = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token }}
{%- if tools is not none %}{{ raise_exception('no tools here') }}{% endif %}
{%- for message in loop_messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set before = system_message ~ '\\n\\n' if loop.first and system_message else '' %}
        {{- '[INST] ' ~ before ~ message.content ~ ' [/INST]' }}
    {%- else %}
        {% generation %}{{- ' ' + message.content | trim + eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""

FEATURES = """
{% macro turn(message, depth=0) %}{{ '#' * (depth + 1) }}{{ message.role | upper }}: {{ message | tojson }}
{% endmacro %}
{% set ns = namespace(count=0, last='') %}
{% for message in messages if message.role != 'system' %}
    {% if message.content == 'skip' %}{% continue %}{% endif %}
    {% if message.content == 'stop' %}{% break %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {% set ns.last = ns.last ~ message.content[:3] %}
{{ turn(message, depth=ns.count) }}
{% else %}nobody{% endfor %}
{% for n in range(ns.count) %}{{ n }},{% endfor %}
{% set block %}{{ ns.last }}|{{ strftime_now('%Y') | length }}{% endset %}
{{ block }} {{ [3, 1, 2] | sort | tojson(indent=2) }} {{ documents is none }} {{ 2 ** 3 }} {{ 'a%s' % 'b' }}
{{ {'b': 'ü<', 'a': none} | tojson(sort_keys=true, separators=(',', ':')) }}
{% if add_generation_prompt %}{{ pad_token }}{% endif %}
"""


def chat(*turns: tuple[str, str]) -> list[ChatMessage]:
    return [ChatMessage(role, content) for role, content in turns]


def render(source: str, *turns: tuple[str, str], add_generation_prompt: bool = True) -> str:
    return ChatTemplate(source, {}).render(chat(*turns), add_generation_prompt=add_generation_prompt)


def as_dicts(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("turns", CONVERSATIONS)
def test_text_and_tokens_of_a_chat_equal_the_references(tokenizer, reference, turns, add_generation_prompt):
    text = reference.apply_chat_template(as_dicts(turns), tokenize=False, add_generation_prompt=add_generation_prompt)
    token_ids = reference.apply_chat_template(
        as_dicts(turns), return_dict=False, add_generation_prompt=add_generation_prompt
    )
    assert tokenizer.render_chat(chat(*turns), add_generation_prompt=add_generation_prompt) == text
    assert tokenizer.encode_chat(chat(*turns), add_generation_prompt=add_generation_prompt) == token_ids


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=30)),
        min_size=1,
        max_size=5,
    )
)
def test_tokens_of_any_chat_equal_the_references(tokenizer, reference, turns):
    expected = reference.apply_chat_template(as_dicts(turns), return_dict=False, add_generation_prompt=True)
    assert tokenizer.encode_chat(chat(*turns)) == expected


@pytest.mark.parametrize("source", [LLAMA_LIKE, FEATURES], ids=["llama-like", "features"])
@pytest.mark.parametrize(
    "turns",
    [
        [("user", "hello"), ("assistant", " hi "), ("user", 'ü < & \' "quoted"')],
        [("system", " be brief\n"), ("user", "skip"), ("assistant", "ok"), ("user", "stop")],
    ],
)
def test_other_templates_render_as_in_the_reference(tokenizer, reference, source, turns):
    special = {
        "bos_token": reference.bos_token,
        "eos_token": reference.eos_token,
        "pad_token": reference.pad_token,
        "unk_token": reference.unk_token,
    }
    ours = ChatTemplate(source, special).render(chat(*turns), add_generation_prompt=True)
    assert ours == reference.apply_chat_template(
        as_dicts(turns), chat_template=source, tokenize=False, add_generation_prompt=True
    )


def test_clock_of_a_template_is_the_servers():
    before = datetime.now().astimezone().strftime("%Y-%m-%d")
    rendered = render("{{ strftime_now('%Y-%m-%d') }}", ("user", "x"))
    assert rendered in {before, datetime.now().astimezone().strftime("%Y-%m-%d")}


def test_refusal_of_the_template_reaches_the_caller_in_its_own_words():
    with pytest.raises(ChatTemplateError) as refusal:
        render(LLAMA_LIKE, ("assistant", "I begin"))
    assert str(refusal.value) == "Conversation roles must alternate user/assistant/user/assistant/..."


@pytest.mark.parametrize(
    "source",
    ["{{ messages[7].content }}", "{{ 1 / 0 }}", "{{ nothing() }}", "{{ 'a' + 1 }}", "{% include 'other' %}"],
)
def test_failing_template_is_the_requests_error(source):
    with pytest.raises(ChatTemplateError, match="fails on these messages"):
        render(source, ("user", "hi"))


def test_model_without_a_template_refuses_chats_only():
    tokenizer = load(byte_level(), template="")
    assert tokenizer.encode("the dog")
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.encode_chat(chat(("user", "hi")))


def test_template_that_cannot_be_read_refuses_chats_only():
    tokenizer = load(byte_level(), template="{% for message in %}")
    assert tokenizer.encode("the dog")
    with pytest.raises(ChatTemplateError, match="cannot be read"):
        tokenizer.encode_chat(chat(("user", "hi")))


def test_chat_without_messages_is_empty(tokenizer):
    with pytest.raises(EmptyPromptError):
        tokenizer.encode_chat([])
    with pytest.raises(EmptyPromptError):
        tokenizer.render_chat([])


@pytest.mark.parametrize("role", ["", "a b", "user\n", "<|im_end|>", "user<|im_end|>", "ü", "x" * 65])
def test_role_that_is_no_name_is_refused(tokenizer, role):
    with pytest.raises(InvalidTextError, match="role"):
        tokenizer.encode_chat([ChatMessage(role, "hi")])


def test_template_names_only_the_special_tokens_that_the_model_has():
    source = "{{ bos_token }}|{{ eos_token is defined }}|{{ unk_token is defined }}"
    tokenizer = load(byte_level(), source, SpecialTokens(bos_token_id=0, unk_token_id=10**6))
    assert tokenizer.render_chat(chat(("user", "hi"))) == "<|begin|>|False|False"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ ''['__class__'] | attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append('x') }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ lipsum() }}",
    ],
)
def test_template_reaches_neither_pythons_insides_nor_what_it_was_given(source):
    messages = chat(("user", "hi"))
    try:
        rendered = ChatTemplate(source, {}).render(messages, add_generation_prompt=True)
    except ChatTemplateError:
        rendered = ""
    assert rendered == ""  # refused, or undefined
    assert messages == chat(("user", "hi"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% set x = range(9999) | list %}{% for a in x %}{% for b in x if false %}{% endfor %}{% endfor %}",
        "{{ range(10 ** 12) | length }}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 9 ** 99999 }}",
        "{% set ns = namespace(x=9) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    ],
)
def test_template_that_would_run_or_grow_without_end_is_stopped(source):
    with pytest.raises(ChatTemplateError, match=r"budget of steps|builds a|recursion"):
        render(source, ("user", "hi"))


def test_output_without_end_is_stopped():
    source = "{% set x = 'x' * 10 ** 6 %}{% for a in range(1000) %}{{ x }}{% endfor %}"
    with pytest.raises(PromptTooLargeError):
        render(source, ("user", "hi"))


def test_template_cannot_replace_its_own_meter():
    source = (
        "{% macro spend_step() %}{% endmacro %}{% set environment = namespace(spend_step=spend_step) %}"
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match="budget"):
        render(source, ("user", "hi"))


def test_budget_is_per_rendering():
    template = ChatTemplate("{% for a in range(40000) %}{% endfor %}done", {})
    for _ in range(3):
        assert template.render(chat(("user", "hi")), add_generation_prompt=True) == "done"


def test_thousand_turns_fit_the_budget(tokenizer, reference):
    turns = [("user", "hi"), ("assistant", "hello")] * 500
    text = reference.apply_chat_template(as_dicts(turns), tokenize=False, add_generation_prompt=True)
    assert tokenizer.render_chat(chat(*turns)) == text


def test_content_is_data_and_never_template_code(tokenizer):
    rendered = tokenizer.render_chat(chat(("user", "{{ messages | tojson }}{% for x in y %}")))
    assert "{{ messages | tojson }}{% for x in y %}" in rendered


def test_tojson_writes_what_the_json_module_writes():
    value = "ü <&> 'x' \u2028"
    assert render("{{ messages[0].content | tojson }}", ("user", value)) == json.dumps(value, ensure_ascii=False)
