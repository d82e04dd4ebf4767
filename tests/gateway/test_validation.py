"""Every field of a spec has a range, and what is out of it is named by its path."""

import math

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import InvalidFieldError
from gateway.servicer.ask import TextPrompt
from gateway.servicer.validation import ask_from_pb
from tests.gateway.world import Tenant, World, make_spec, refused


def violated(**fields) -> list[str]:
    """The paths that a spec with these fields violates."""
    try:
        ask_from_pb(make_spec(**fields))
    except InvalidFieldError as error:
        return [violation.field for violation in error.field_violations]
    return []


CALLED = pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="call_1", name="now", arguments="{}")])
ANSWERED = pb.ChatMessage(role="tool", tool_call_id="call_1", content="noon")
SAMPLING_RANGES = {
    "temperature": ((0.0, 100.0), (-0.001, 100.001)),
    "top_p": ((1e-9, 1.0), (0.0, -1.0, 1.0001)),
    "min_p": ((0.0, 1.0), (-0.1, 1.1)),
    "repetition_penalty": ((0.01, 100.0), (0.0, 100.5)),
    "presence_penalty": ((-2.0, 2.0), (-2.1, 2.1)),
    "frequency_penalty": ((-2.0, 2.0), (-2.1, 2.1)),
}


@pytest.mark.parametrize("name", SAMPLING_RANGES)
def test_a_sampling_value_is_accepted_at_its_bounds_and_refused_beyond(name: str) -> None:
    inside, outside = SAMPLING_RANGES[name]

    for value in inside:
        assert violated(sampling=pb.SamplingOptions(**{name: value})) == []
    for value in (*outside, math.nan, math.inf, -math.inf):
        assert violated(sampling=pb.SamplingOptions(**{name: value})) == [f"spec.sampling.{name}"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"stopping": {"max_output_tokens": 0}}, "spec.stopping.max_output_tokens"),
        ({"stopping": {"max_output_tokens": -1}}, "spec.stopping.max_output_tokens"),
        ({"stopping": {"stop": ["x"] * 17}}, "spec.stopping.stop"),
        ({"stopping": {"stop": ["ok", ""]}}, "spec.stopping.stop[1]"),
        ({"stopping": {"stop": ["x" * 257]}}, "spec.stopping.stop[0]"),
        ({"stopping": {"stop_token_ids": range(65)}}, "spec.stopping.stop_token_ids"),
        ({"sampling": pb.SamplingOptions(top_k=2**31)}, "spec.sampling.top_k"),
        ({"output": pb.OutputOptions(logprobs=21)}, "spec.output.logprobs"),
        ({"request_id": "not-a-uuid"}, "spec.request_id"),
        ({"request_id": "{8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11}"}, "spec.request_id"),
        ({"model": "m" * 257}, "spec.model"),
        ({"admission": pb.AdmissionOptions(priority_class="c" * 257)}, "spec.admission.priority_class"),
        ({"admission": pb.AdmissionOptions(on_deadline=9)}, "spec.admission.on_deadline"),
        ({"admission": pb.AdmissionOptions(on_quota_exhausted=9)}, "spec.admission.on_quota_exhausted"),
        ({"admission": pb.AdmissionOptions(labels={str(n): "" for n in range(9)})}, "spec.admission.labels"),
        ({"admission": pb.AdmissionOptions(labels={"": "x"})}, "spec.admission.labels"),
        ({"admission": pb.AdmissionOptions(labels={"k": "v" * 257})}, "spec.admission.labels"),
        ({"admission": pb.AdmissionOptions(labels={"k": "\0"})}, "spec.admission.labels"),
        ({"admission": pb.AdmissionOptions(max_queue_wait=Duration())}, "spec.admission.max_queue_wait"),
        ({"admission": pb.AdmissionOptions(max_queue_wait=Duration(seconds=-1))}, "spec.admission.max_queue_wait"),
        ({"admission": pb.AdmissionOptions(max_queue_wait=Duration(seconds=90_000))}, "spec.admission.max_queue_wait"),
        ({"chat": pb.ChatPrompt(messages=[pb.ChatMessage(role="root")])}, "spec.chat.messages[0].role"),
        ({"chat": pb.ChatPrompt(messages=[ANSWERED])}, "spec.chat.messages[0].tool_call_id"),
        ({"chat": pb.ChatPrompt(messages=[ANSWERED, CALLED])}, "spec.chat.messages[0].tool_call_id"),
    ],
)
def test_a_field_out_of_its_range_is_named(fields: dict, path: str) -> None:
    assert violated(**fields) == [path]


def test_what_a_tool_has_answered_is_of_any_call_before_it() -> None:
    again = pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(id="call_2", name="now")])
    unsaid = pb.ChatMessage(role="tool", content="noon")

    assert violated(chat=pb.ChatPrompt(messages=[CALLED, ANSWERED, again, ANSWERED, unsaid])) == []


def test_all_violations_are_told_at_once() -> None:
    paths = violated(
        text="", sampling=pb.SamplingOptions(temperature=math.nan, top_p=2.0), stopping={"max_output_tokens": 0}
    )

    assert paths == [
        "spec.text",
        "spec.sampling.temperature",
        "spec.sampling.top_p",
        "spec.stopping.max_output_tokens",
    ]


def test_two_specs_have_the_same_fingerprint_exactly_when_they_are_the_same() -> None:
    request_id = "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"
    first, again, other = (
        ask_from_pb(make_spec(request_id=request_id, text=text, model="m")).fingerprint for text in ("a", "a", "b")
    )

    assert first == again != other


@given(st.text(min_size=1))
def test_text_reaches_the_tokenizer_as_it_was_sent(text: str) -> None:
    try:
        spec = make_spec(text=text)
    except (UnicodeEncodeError, ValueError):
        return  # a lone surrogate: no client can send it
    assert ask_from_pb(pb.GenerationSpec.FromString(spec.SerializeToString())).prompt == TextPrompt(text)


async def test_the_violations_travel_as_bad_request(shared_tenant: Tenant) -> None:
    refusal = await refused(
        shared_tenant.stream(sampling=pb.SamplingOptions(top_p=0.0), stopping={"max_output_tokens": -5})
    )

    assert refusal.info.reason == "INVALID_FIELD"
    assert refusal.fields == ["spec.sampling.top_p", "spec.stopping.max_output_tokens"]


async def test_token_ids_outside_of_the_vocabulary(shared_tenant: Tenant) -> None:
    prompt = await refused(shared_tenant.generate(token_ids=pb.TokenPrompt(ids=[1, 258])))
    stop = await refused(shared_tenant.generate(stopping={"stop_token_ids": [2**32 - 1]}))
    counted = await refused(shared_tenant.count_tokens(token_ids=pb.TokenPrompt(ids=[258])))

    assert prompt.fields == ["spec.token_ids.ids"]
    assert stop.fields == ["spec.stopping.stop_token_ids"]
    assert counted.fields == ["token_ids.ids"]


async def test_hundreds_of_violations_still_fit_the_answer(shared_tenant: Tenant) -> None:
    messages = [pb.ChatMessage(role="x" * 50)] * 500
    refusal = await refused(shared_tenant.generate(chat=pb.ChatPrompt(messages=messages)))

    assert refusal.info.reason == "INVALID_FIELD"
    assert refusal.fields[:2] == ["spec.chat.messages[0].role", "spec.chat.messages[1].role"]


async def test_millions_of_empty_entries_are_refused_without_being_walked_over(shared_tenant: Tenant) -> None:
    crowd = pb.ChatPrompt.FromString(b"\x0a\x00" * 2_000_000)
    many = pb.TokenPrompt(ids=[1] * 2_000_000)
    messages = await refused(shared_tenant.generate(chat=crowd))
    ids = await refused(shared_tenant.generate(token_ids=many))
    counted = await refused(shared_tenant.count_tokens(token_ids=many))
    stops = await refused(shared_tenant.generate(stopping={"stop": [""] * 2_000_000}))

    assert messages.fields[0] == "spec.chat.messages"
    assert (ids.info.reason, counted.info.reason) == ("CONTEXT_LENGTH", "CONTEXT_LENGTH")
    assert stops.fields[0] == "spec.stopping.stop"


async def test_a_chat_for_a_model_without_a_template_names_the_field(closed_world: World) -> None:
    closed_world.engine.info.chat_template = ""
    await closed_world.open()
    await closed_world.serving()
    tenant = await closed_world.tenant()
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")])

    assert (await refused(tenant.generate(chat=chat))).fields == ["spec.chat"]
    assert (await refused(tenant.count_tokens(chat=chat))).fields == ["chat"]
    assert (await refused(tenant.count_tokens(chat=pb.ChatPrompt()))).fields == ["chat.messages"]
