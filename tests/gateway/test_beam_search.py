"""Beam searches over gRPC: what the engine is asked, what is told of what it finds, and what is billed."""

import random

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway import semconv
from gateway.errors import InvalidFieldError
from gateway.servicer.validation import ask_from_pb
from tests.gateway.calls import rest_of
from tests.gateway.fake_engine import END_TOKEN, MODEL, FakeCall
from tests.gateway.searches import NUM_STEPS, WORDS, outputs_of, score_of, searched
from tests.gateway.world import Tenant, World, eventually, make_spec, refused

Search = pb.BeamSearchOptions
STOP, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
THREE = Search(width=4, num_returned=3)
OPTIONS = pb.OutputOptions(logprobs=1, token_ids=True)
HI = pb.ChatMessage(role="user", content="hi")
REQUIRED = pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED)


@pytest.fixture
def searches(world: World) -> World:
    world.engine.script = searched
    return world


@pytest.fixture
def shared_searches(shared_world: World) -> World:
    shared_world.engine.script = searched
    return shared_world


async def test_a_search_is_asked_for_with_its_defaults_and_is_greedy(
    shared_searches: World, shared_tenant: Tenant
) -> None:
    await shared_tenant.generate(beam_search=Search(width=4))
    await shared_tenant.generate(
        beam_search=Search(width=16, num_returned=16, length_penalty=-0.5, early_stopping=True),
        sampling=pb.SamplingOptions(temperature=0, top_p=1, top_k=0, min_p=0, seed=7),
    )
    await shared_tenant.generate()

    first, second, plain = (call.start for call in shared_searches.engine.calls)
    assert first.beam_search == engine_pb2.BeamSearch(width=4, num_returned=1, length_penalty=1)
    assert second.beam_search == engine_pb2.BeamSearch(
        width=16, num_returned=16, length_penalty=-0.5, early_stopping=True
    )
    assert (first.sampling.temperature, first.max_output_tokens) == (0, 8)
    assert (plain.HasField("beam_search"), plain.sampling.temperature) == (False, 1)


async def test_the_outputs_come_best_first_each_with_its_score_and_its_own_end(
    shared_searches: World, shared_tenant: Tenant
) -> None:
    answer = await shared_tenant.generate(beam_search=THREE, output=OPTIONS)

    assert [(each.index, each.text, each.score) for each in answer.outputs] == [
        (rank, WORDS[rank].decode(), score_of(rank)) for rank in range(3)
    ]
    assert [each.finish_reason for each in answer.outputs] == [STOP, LENGTH, STOP]
    assert [list(each.token_ids) for each in answer.outputs] == [
        [*WORDS[0], END_TOKEN],
        [*WORDS[1]],
        [*WORDS[2], END_TOKEN],
    ]
    for rank, each in enumerate(answer.outputs):
        assert [entry.logprob for entry in each.logprobs] == [score_of(rank)] * len(each.token_ids)
    assert not (await shared_tenant.generate(beam_search=THREE)).outputs[0].token_ids


async def test_what_was_computed_into_beams_is_billed_once(shared_searches: World, own_tenant: Tenant) -> None:
    answer = await own_tenant.generate(beam_search=THREE)

    used = answer.usage
    assert (used.input_tokens, used.output_tokens, used.discarded_tokens) == (2, 4 * NUM_STEPS, 0)
    assert (used.billed_tokens, used.reserved_tokens) == (2 + 4 * NUM_STEPS, 2 + 4 * 8)
    (row,) = await shared_searches.usage_rows(own_tenant)
    assert (row["output_tokens"], row["billed_tokens"], row["finish_reason"]) == (24, 26, "STOP")


async def test_a_stream_tells_each_output_whole_and_the_end_of_the_best(
    shared_searches: World, shared_tenant: Tenant
) -> None:
    whole = await shared_tenant.generate(beam_search=THREE, output=OPTIONS)
    told = [message async for message in shared_tenant.stream(beam_search=THREE, output=OPTIONS)]

    assert [message.WhichOneof("event") for message in told] == ["admission", *["token_delta"] * 3, "finish"]
    assert [message.sequence for message in told] == [1, 2, 3, 4, 5]
    assert outputs_of(told) == list(whole.outputs)
    assert [message.token_delta.output_tokens_so_far for message in told[1:-1]] == [6, 4, 3]
    assert told[-1].finish.finish_reason == STOP
    assert told[-1].finish.usage == whole.usage


async def test_stop_strings_cut_each_output_when_it_is_told(shared_searches: World, shared_tenant: Tenant) -> None:
    stopping = {"max_output_tokens": 8, "stop": ["lp", "lo"]}
    answer = await shared_tenant.generate(beam_search=THREE, stopping=stopping, output=OPTIONS)

    assert [each.text for each in answer.outputs] == ["hel", "he", "he"]
    assert [each.finish_reason for each in answer.outputs] == [STOP] * 3
    assert [bytes(each.token_ids[:5]) for each in answer.outputs[:2]] == [b"hello", b"help"]
    assert [len(each.logprobs) for each in answer.outputs] == [5, 4, 3]
    assert answer.usage.output_tokens == 4 * NUM_STEPS
    assert not any(message.HasField("cancel") for message in shared_searches.engine.calls[0].controls)


async def test_a_best_output_that_is_cut_at_its_length_ends_the_search_so(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.find(0, b"abc", -1.0, engine_pb2.FINISH_REASON_LENGTH)
        await call.find(1, [END_TOKEN], -2.0)
        await call.finish(engine_pb2.FINISH_REASON_STOP)

    shared_world.engine.script = script
    told = [message async for message in shared_tenant.stream(beam_search=Search(width=2, num_returned=2))]
    assert told[-1].finish.finish_reason == LENGTH


@pytest.mark.parametrize(
    ("search", "fields"),
    [
        (Search(), ["width"]),
        (Search(width=1), ["width"]),
        (Search(width=17), ["width"]),
        (Search(width=2**32 - 1, num_returned=17), ["width", "num_returned"]),
        (Search(width=4, num_returned=0), ["num_returned"]),
        (Search(width=4, num_returned=5), ["num_returned"]),
        (Search(width=4, length_penalty=10.5), ["length_penalty"]),
        (Search(width=4, length_penalty=float("nan")), ["length_penalty"]),
    ],
)
def test_a_search_out_of_range_is_refused_by_name(search: Search, fields: list[str]) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        ask_from_pb(make_spec(beam_search=search))
    assert [each.field for each in refusal.value.field_violations] == [f"spec.beam_search.{field}" for field in fields]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"sampling": pb.SamplingOptions(temperature=1)}, "sampling.temperature"),
        ({"sampling": pb.SamplingOptions(temperature=0.001)}, "sampling.temperature"),
        ({"sampling": pb.SamplingOptions(top_k=1)}, "sampling.top_k"),
        ({"sampling": pb.SamplingOptions(top_p=0.9)}, "sampling.top_p"),
        ({"sampling": pb.SamplingOptions(min_p=0.1)}, "sampling.min_p"),
        ({"output": pb.OutputOptions(prompt_logprobs=0)}, "output.prompt_logprobs"),
        ({"output": pb.OutputOptions(format=pb.OutputFormat(json_object=True))}, "output.format"),
        ({"chat": pb.ChatPrompt(messages=[HI], tools=[pb.Tool(name="now", strict=True)])}, "chat.tools"),
        (
            {"chat": pb.ChatPrompt(messages=[HI], tools=[pb.Tool(name="now")], tool_choice=REQUIRED)},
            "chat.tool_choice",
        ),
    ],
)
def test_what_does_not_go_with_a_search_is_refused_by_name(spec: dict, field: str) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        ask_from_pb(make_spec(beam_search=Search(width=2), **spec))
    (violation,) = refusal.value.field_violations
    assert violation.field == f"spec.{field}"
    assert "beam search" in violation.description


async def test_a_bad_search_costs_nothing(shared_world: World, shared_tenant: Tenant) -> None:
    refusal = await refused(shared_tenant.generate(beam_search=Search(width=4, num_returned=5)))
    assert (refusal.info.reason, refusal.fields) == ("INVALID_FIELD", ["spec.beam_search.num_returned"])
    assert not shared_world.engine.calls


async def test_what_the_engine_refuses_of_a_search_has_its_public_name(
    shared_world: World, shared_tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.refuse_field("beam_search.width", "is more than this engine has rows")

    shared_world.engine.script = script
    refusal = await refused(shared_tenant.generate(beam_search=Search(width=16)))
    assert refusal.fields == ["spec.beam_search.width"]


async def test_beams_that_no_pool_can_hold_together_are_refused(shared_searches: World, shared_tenant: Tenant) -> None:
    await shared_tenant.generate(beam_search=Search(width=2), stopping={"max_output_tokens": 64 * 16 - 2})
    refusal = await refused(
        shared_tenant.generate(beam_search=Search(width=2), stopping={"max_output_tokens": 64 * 16 - 1})
    )

    assert shared_searches.engine.calls[0].start.max_output_tokens == 1022
    assert (refusal.info.reason, refusal.fields) == ("EXCEEDS_KV_POOL", ["spec.stopping.max_output_tokens"])
    assert refusal.info.metadata["max_beam_output_tokens"] == "1022"


async def test_the_prompts_full_blocks_are_held_once(shared_searches: World, shared_tenant: Tenant) -> None:
    await shared_tenant.generate(text="x" * 1600, beam_search=Search(width=16), stopping={"max_output_tokens": 16})
    refusal = await refused(
        shared_tenant.generate(text="x" * 1600, beam_search=Search(width=16), stopping={"max_output_tokens": 17})
    )
    one = await shared_tenant.generate(text="x" * 2047, beam_search=Search(width=16), stopping={"max_output_tokens": 1})

    assert refusal.info.reason == "EXCEEDS_KV_POOL"
    assert one.usage.reserved_tokens == 2047 + 16


async def test_without_a_length_each_beam_has_its_part_of_the_pool(
    shared_searches: World, shared_tenant: Tenant
) -> None:
    answer = await shared_tenant.generate(beam_search=Search(width=16), stopping={"max_output_tokens": None})

    assert shared_searches.engine.calls[0].start.max_output_tokens == 2048 // 16 - 2
    assert answer.usage.reserved_tokens == 2 + 2048 - 32


async def test_operators_see_how_wide_a_search_was_and_how_each_output_ended(
    searches: World, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    await tenant.generate(beam_search=THREE)
    await searches.settled()
    await eventually(lambda: any(span.name.endswith(MODEL) for span in spans.get_finished_spans()))

    (span,) = [span for span in spans.get_finished_spans() if span.name.endswith(MODEL)]
    assert span.attributes[semconv.NUM_BEAMS] == 4
    assert span.attributes[semconv.GEN_AI_FINISH_REASONS] == ("stop", "length", "stop")
    assert span.attributes[semconv.GEN_AI_OUTPUT_TOKENS] == 24
    families = {family.name: family for family in searches.live._meters.families()}
    assert not [sample for sample in families["gen_ai_server_time_per_output_token_seconds"].samples if sample.value]
    assert any(sample.value == 24 for sample in families["evenflow_tokens"].samples)


async def test_any_search_is_told_alike_in_one_piece_in_a_stream_and_again(
    shared_world: World, own_tenant: Tenant
) -> None:
    chance = random.Random(11)
    for number in range(20):
        width = chance.randint(2, 16)
        found = [
            (bytes(chance.choices(b"ab\xc3\xa9\n", k=chance.randint(0, 6))), -chance.random(), chance.random() < 0.5)
            for _ in range(chance.randint(1, width))
        ]

        async def script(call: FakeCall, found=found) -> None:
            await call.accept()
            await call.admit()
            for rank, (text, score, is_cut) in enumerate(found):
                reason = engine_pb2.FINISH_REASON_LENGTH if is_cut else engine_pb2.FINISH_REASON_STOP
                told = [engine_pb2.TokenLogprobs(logprob=-0.5)] * len(text)
                await call.find(rank, text, score, reason, told)
            await call.finish(output_tokens=len(found))

        shared_world.engine.script = script
        ask = {
            "beam_search": Search(width=width, num_returned=len(found)),
            "output": pb.OutputOptions(logprobs=0, token_ids=chance.random() < 0.5),
            "stopping": {"max_output_tokens": 8, "stop": ["ab"] if chance.random() < 0.5 else []},
            "request_id": f"8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a{number:04d}",
        }
        whole = await own_tenant.generate(**ask)
        stream = own_tenant.stream(**ask)
        told = [await stream.read(), *await rest_of(stream)]

        assert outputs_of(told) == list(whole.outputs)
        assert [each.index for each in whole.outputs] == list(range(len(found)))
        assert told[-1].finish.usage == whole.usage
    await shared_world.settled()
    assert shared_world.book.num_reservations == 0
