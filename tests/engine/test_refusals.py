"""What the service does not accept, over a real socket: each refusal has its code and its reason, and harms nobody."""

import asyncio

import grpc
import pytest

from engine.errors import GrammarsBusyError, InvalidFieldError, NotReadyError
from engine.loop_messages import Refused
from engine.server.convert import request_from_pb
from engine.server.status import meaning_of
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.wire import Answer, cancel, expected_tokens, generate, refusal, start, until_blocks_are_free


async def test_duplicate_is_refused_and_its_end_does_not_touch_the_first(stub, runner):
    runner.hold()
    first = generate(stub, start("a", max_output_tokens=100))
    await first.until("accepted")
    code, reason, _, _ = await runner.step_until(refusal(generate(stub, start("a"))))
    assert (code, reason) == ("ALREADY_EXISTS", "DUPLICATE_GENERATION")
    third = generate(stub, start("a"))
    third.cancel_rpc()
    runner.release()
    assert (await first.to_end()).token_ids == expected_tokens(100)
    assert first.reason == "LENGTH"


async def test_id_can_be_used_again_after_the_end(stub):
    for _ in range(2):
        assert (await generate(stub, start("a")).to_end()).token_ids == expected_tokens(4)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "prompt_token_ids"),
        ({"prompt": [1000]}, "prompt_token_ids"),
        ({"prompt": [2**32 - 1]}, "prompt_token_ids"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": -5}, "max_output_tokens"),
        ({"grant_output_tokens": -1}, "grant_output_tokens"),
        ({"tenant": ()}, "path"),
        ({"tenant": ("acme", "")}, "path.id"),
        ({"tenant": ("acme", "a/b")}, "path.id"),
        ({"sampling": {"temperature": float("nan")}}, "sampling.temperature"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": float("inf")}}, "sampling.temperature"),
        ({"sampling": {"top_p": 0.0}}, "sampling.top_p"),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p"),
        ({"sampling": {"min_p": -0.5}}, "sampling.min_p"),
        ({"sampling": {"repetition_penalty": 0.0}}, "sampling.repetition_penalty"),
        ({"sampling": {"presence_penalty": 2.5}}, "sampling.presence_penalty"),
        ({"sampling": {"frequency_penalty": float("-inf")}}, "sampling.frequency_penalty"),
        ({"sampling": {"num_logprobs": 21}}, "sampling.num_logprobs"),
        ({"sampling": {"stop_token_ids": [1000]}}, "sampling.stop_token_ids"),
        ({"sampling": {"stop_token_ids": [3] * 257}}, "sampling.stop_token_ids"),
        ({"sampling": {"num_prompt_logprobs": 21}}, "sampling.num_prompt_logprobs"),
        ({"sampling": {"allowed_token_ids": [1000]}}, "sampling.allowed_token_ids"),
        ({"sampling": {"biased_token_ids": [1000], "biases": [1]}}, "sampling.biased_token_ids"),
        ({"sampling": {"biased_token_ids": [7, 7], "biases": [1, 2]}}, "sampling.biased_token_ids"),
        ({"sampling": {"biased_token_ids": [7], "biases": []}}, "sampling.biases"),
        ({"sampling": {"biased_token_ids": [7], "biases": [float("nan")]}}, "sampling.biases"),
        ({"sampling": {"biased_token_ids": [7], "biases": [100.5]}}, "sampling.biases"),
        ({"sampling": {"grammar": pb.Grammar()}}, "sampling.grammar"),
        # The fake's tokenizer is none that grammars could be read with.
        ({"sampling": {"grammar": pb.Grammar(regex="a")}}, "sampling.grammar"),
    ],
)
async def test_field_out_of_range_is_refused_by_name(stub, fields, field):
    code, reason, metadata, text = await refusal(generate(stub, start("a", **fields)))
    assert (code, reason, metadata["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", field)
    assert text.startswith(field)
    assert (await generate(stub, start("b")).to_end()).reason == "LENGTH"


def test_an_engine_too_busy_for_one_more_grammar_does_not_say_that_it_is_away():
    code, reason, _ = meaning_of(GrammarsBusyError(), max_model_len=1)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "GRAMMARS_BUSY")


async def test_request_without_sampling_or_class_or_id_is_refused(stub):
    for field in ("sampling", "priority_class", "generation_id"):
        request = start("a")
        request.start.ClearField(field)
        _, reason, metadata, _ = await refusal(generate(stub, request))
        assert reason == "INVALID_FIELD"
        assert metadata["field"].startswith(field)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
async def test_weight_that_is_no_share_is_refused(stub, weight):
    request = start("a")
    request.start.path[1].weight = weight
    _, reason, metadata, _ = await refusal(generate(stub, request))
    assert (reason, metadata["field"]) == ("INVALID_FIELD", "path.weight")


async def test_what_can_never_fit_is_refused_at_once_and_alone(stub, runner):
    # The pool holds 64 blocks of 4 tokens, the context 512 tokens.
    code, reason, metadata, _ = await refusal(generate(stub, start("a", max_output_tokens=254)))
    assert (code, reason) == ("INVALID_ARGUMENT", "EXCEEDS_KV_POOL")
    assert metadata == {"num_tokens": "257", "max_tokens": "256"}
    _, reason, _, _ = await refusal(generate(stub, start("a", max_output_tokens=2**31 - 1)))
    assert reason == "CONTEXT_LENGTH"
    fits = generate(stub, start("a", max_output_tokens=253, sampling={"ignore_eos": True}))
    assert (await fits.to_end()).reason == "LENGTH"


@pytest.mark.parametrize("version", [0, 2])
async def test_other_protocol_version_is_refused(stub, version):
    code, reason, metadata, _ = await refusal(generate(stub, start("a", protocol_version=version)))
    assert (code, reason, metadata) == ("FAILED_PRECONDITION", "PROTOCOL_VERSION", {"protocol_version": "1"})
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetModelInfo(pb.GetModelInfoRequest(protocol_version=version))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_first_message_must_be_start(stub):
    for message in (cancel(), pb.GenerateRequest()):
        _, reason, metadata, _ = await refusal(generate(stub, message))
        assert (reason, metadata["field"]) == ("INVALID_FIELD", "start")


async def test_call_without_any_message_is_refused(stub):
    answer = Answer(stub.Generate)
    answer.half_close()
    _, reason, metadata, _ = await refusal(answer)
    assert (reason, metadata["field"]) == ("INVALID_FIELD", "start")


@pytest.mark.parametrize("message", [None, start("b")], ids=["none", "second start"])
async def test_engine_that_fails_as_a_request_enters_ends_the_call_with_its_status(server, stub, monkeypatch, message):
    intake = server._intake
    enter, tasks = intake.enter, []

    def enter_and_fail(request, metadata, account):
        call = enter(request, metadata, account)
        tasks.append(asyncio.create_task(intake.fail("the engine thread has ended")))  # runs before the call goes on
        return call

    monkeypatch.setattr(intake, "enter", enter_and_fail)
    answer = generate(stub, start("a"))
    if message is not None:
        answer.write(message)
    code, reason, _, text = await refusal(answer)
    assert (code, reason, text) == ("UNAVAILABLE", "NOT_READY", "the engine thread has ended")
    await asyncio.gather(*tasks)


async def test_second_start_to_an_engine_that_has_failed_changes_nothing(server, stub):
    intake = server._intake
    call = intake.enter(request_from_pb(start("a").start, intake.engine.limits, intake.engine.loop.now()), {})
    await intake.fail("the engine thread has ended")
    intake.reject(call, InvalidFieldError("start", "must be the first message"))
    (update,) = [update for update in await call.mailbox.take() if isinstance(update, Refused)]
    assert isinstance(update.error, NotReadyError)
    intake.leave(call)


async def test_second_start_ends_the_call_and_frees_its_blocks(stub, runner):
    runner.hold()
    answer = generate(stub, start("a", max_output_tokens=100))
    await answer.until("accepted")
    answer.write(start("b"))
    code, reason, metadata, _ = await refusal(answer)
    assert (code, reason, metadata["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", "start")
    runner.release()
    await until_blocks_are_free(stub)


async def test_bytes_that_are_no_message_are_refused_and_harm_nobody(stub, channel):
    method = "/evenflow.engine.v1.EngineService/"
    garbage = b"\xff\xff\xff\xff"
    for name in ("GetModelInfo", "GetStats", "Drain"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(method + name)(garbage)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    for messages in ([garbage], [start("a", grant_output_tokens=1).SerializeToString(), garbage]):
        answer = Answer(
            channel.stream_stream(method + "Generate", response_deserializer=pb.GenerateResponse.FromString)
        )
        for message in messages:
            answer.write(message)
        _, reason, metadata, _ = await refusal(answer)
        assert (reason, metadata["field"]) == ("INVALID_FIELD", "message")
    await until_blocks_are_free(stub)


async def test_unknown_fields_and_enum_values_are_harmless(stub):
    request = pb.GenerateRequest.FromString(start("a").SerializeToString() + b"\xf8\x3f\x01")
    answer = generate(stub, request)
    answer.write(pb.GenerateRequest(set_class=pb.SetClass(priority_class=pb.PriorityClass(name="batch"))))
    assert (await answer.to_end()).reason == "LENGTH"
