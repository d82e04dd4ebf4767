"""A generation's span in the words that the operator chose; an unknown choice stops the start."""

import json

import pytest

from gateway import semconv
from gateway.errors import SettingsError
from gateway.semconv import Semconv
from gateway.settings import load_settings
from gateway.span_dialects import Content, Message, content_attributes, span_name, translated

SAID = {
    semconv.GEN_AI_OPERATION: "chat",
    semconv.GEN_AI_PROVIDER: "evenflow",
    semconv.GEN_AI_REQUEST_MODEL: "m",
    semconv.GEN_AI_REQUEST_MAX_TOKENS: 8,
    semconv.GEN_AI_REQUEST_TOP_K: 4,
    semconv.GEN_AI_FINISH_REASONS: ("stop",),
    semconv.GEN_AI_INPUT_TOKENS: 2,
    semconv.GEN_AI_OUTPUT_TOKENS: 6,
    semconv.GENERATION_ID: "g",
}
CONTENT = Content((Message("system", "s"), Message("user", "ü")), "answer", "stop")


def test_openinference_has_its_own_names_for_everything_it_knows() -> None:
    told = translated(Semconv.OPENINFERENCE, SAID)

    parameters = json.loads(told.pop(semconv.OPENINFERENCE_PARAMETERS))
    assert parameters == {"max_tokens": 8, "top_k": 4}
    assert told == {
        "openinference.span.kind": "LLM",
        "llm.provider": "evenflow",
        "llm.model_name": "m",
        "llm.token_count.prompt": 2,
        "llm.token_count.completion": 6,
        "llm.token_count.total": 8,
        "llm.finish_reason": "stop",
        "evenflow.generation_id": "g",
    }


def test_the_older_conventions_differ_in_one_type() -> None:
    assert translated(Semconv.GEN_AI_V0_1, SAID) == SAID
    top_k = translated(Semconv.GEN_AI_1_41, SAID)[semconv.GEN_AI_REQUEST_TOP_K]
    assert (top_k, type(top_k)) == (4.0, float)


def test_without_conventions_only_our_own_names_are_left() -> None:
    assert translated(Semconv.NONE, SAID) == {semconv.GENERATION_ID: "g"}
    assert content_attributes(Semconv.NONE, CONTENT) == {}
    assert span_name(Semconv.NONE, "chat", "m") == "evenflow.generation"


def test_messages_are_in_the_form_of_the_conventions() -> None:
    told = content_attributes(Semconv.GEN_AI_V0_1, CONTENT)

    assert json.loads(told[semconv.GEN_AI_INPUT_MESSAGES])[1] == {
        "role": "user",
        "parts": [{"type": "text", "content": "ü"}],
    }
    assert json.loads(told[semconv.GEN_AI_OUTPUT_MESSAGES]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "answer"}], "finish_reason": "stop"}
    ]


def test_an_unknown_choice_stops_the_start_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENFLOW_GATEWAY_TELEMETRY_SEMCONV", "gen_ai_v9")
    with pytest.raises(SettingsError, match=r"EVENFLOW_GATEWAY_TELEMETRY_SEMCONV: Input should be 'gen_ai_v0_1'"):
        load_settings(engine="unix:/e", database_url="postgresql://x")


@pytest.mark.parametrize(("text", "is_told"), [("true", True), ("false", False)])
def test_text_is_told_only_where_a_variable_says_so(monkeypatch: pytest.MonkeyPatch, text: str, is_told: bool) -> None:
    settings = {"engine": "unix:/e", "database_url": "postgresql://x"}
    assert load_settings(**settings).telemetry_content is False
    monkeypatch.setenv("EVENFLOW_GATEWAY_TELEMETRY_CONTENT", text)
    assert load_settings(**settings).telemetry_content is is_told
