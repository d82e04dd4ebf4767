"""The service over a real socket, with a fake model: streams, refusals, cancels, draining."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.conftest import connected
from tests.engine.wire import Answer, cancel, expected_tokens, generate, refusal, start, until_blocks_are_free


async def test_stream_has_its_messages_in_order_and_ends_in_finished(stub):
    answer = await generate(stub, start("a", max_output_tokens=5)).to_end()
    assert answer.kinds[0] == "accepted"
    assert answer.kinds[1] == "admitted"
    assert set(answer.kinds[2:-1]) == {"token_chunk"}
    assert answer.token_ids == expected_tokens(5)
    assert answer.reason == "LENGTH"
    assert answer.finished.usage.prompt_tokens == 3
    assert answer.finished.usage.output_tokens == 5
    assert answer.finished.timings.num_decode_steps == 4
    assert answer.messages[0].accepted.protocol_version == 1


async def test_half_closed_call_is_served_to_its_end(stub):
    answer = generate(stub, start("a"))
    answer.half_close()
    assert (await answer.to_end()).token_ids == expected_tokens(4)
    assert answer.reason == "LENGTH"


async def test_model_and_stop_tokens_end_the_output_and_belong_to_it(stub):
    answer = await generate(stub, start("a", sampling={"stop_token_ids": [12]})).to_end()
    assert answer.token_ids == expected_tokens(3)
    assert answer.reason == "STOP"


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [
        (pb.CANCEL_REASON_UNSPECIFIED, "CANCELLED"),
        (pb.CANCEL_REASON_CLIENT, "CANCELLED"),
        (pb.CANCEL_REASON_KEY_REVOKED, "CANCELLED"),
        (pb.CANCEL_REASON_STOP_STRING, "STOP"),
        (pb.CANCEL_REASON_DEADLINE, "DEADLINE"),
    ],
)
async def test_cancel_ends_the_stream_with_the_reason_it_stands_for(stub, runner, reason, finish_reason):
    runner.hold()
    runner.allow(2)
    answer = generate(stub, start("a", max_output_tokens=100))
    await answer.until("token_chunk")
    answer.write(cancel(reason))
    await runner.step_until(answer.to_end())
    assert answer.reason == finish_reason
    assert answer.token_ids == expected_tokens(answer.finished.usage.output_tokens)
    assert len(answer.token_ids) < 100
    await runner.step_until(until_blocks_are_free(stub))


async def test_request_without_a_token_can_be_cancelled(stub, runner):
    runner.hold()
    answer = generate(stub, start("a", max_output_tokens=100))
    await answer.until("accepted")
    answer.write(cancel())
    await runner.step_until(answer.to_end())
    assert answer.reason == "CANCELLED"
    assert len(answer.token_ids) < 100


async def test_cancelled_rpc_frees_its_blocks(stub, runner):
    runner.hold()
    runner.allow(2)
    answer = generate(stub, start("a", max_output_tokens=100))
    await answer.until("token_chunk")
    answer.cancel_rpc()
    stats = await runner.step_until(until_blocks_are_free(stub))
    assert stats.num_steps < 100


async def test_connection_that_breaks_frees_its_blocks(stub, runner, tmp_path):
    runner.hold()
    runner.allow(2)
    async with connected(tmp_path) as other:
        answer = generate(type(stub)(other), start("a", max_output_tokens=100))
        await answer.until("token_chunk")
    stats = await runner.step_until(until_blocks_are_free(stub))
    assert stats.num_steps < 100


async def test_grant_that_is_used_up_pauses_and_a_larger_one_goes_on(stub):
    answer = generate(stub, start("a", max_output_tokens=8, grant_output_tokens=3))
    preempted = (await answer.until("preempted")).preempted
    assert (preempted.mode, preempted.reason) == (pb.PREEMPTION_MODE_PAUSE, pb.PAUSE_REASON_QUOTA)
    assert answer.token_ids == expected_tokens(3)
    answer.write(pb.GenerateRequest(grant=pb.Grant(max_output_tokens=8)))
    await answer.to_end()
    assert "resumed" in answer.kinds
    assert answer.token_ids == expected_tokens(8)
    assert answer.reason == "LENGTH"


async def test_blocked_reader_pauses_its_request_until_it_reads_again(stub, runner):
    runner.hold()
    runner.allow(2)
    answer = generate(stub, start("a", max_output_tokens=50))
    await answer.until("token_chunk")
    answer.write(pb.GenerateRequest(reader_blocked=pb.ReaderBlocked()))
    preempted = (await runner.step_until(answer.until("preempted"))).preempted
    assert preempted.reason == pb.PAUSE_REASON_READER
    runner.release()
    assert (await stub.GetStats(pb.GetStatsRequest())).paused == 1
    answer.write(pb.GenerateRequest(reader_ready=pb.ReaderReady()))
    await answer.to_end()
    assert answer.token_ids == expected_tokens(50)


async def test_deadline_ends_a_request_that_runs(stub, runner):
    runner.hold()
    answer = generate(stub, start("a", deadline_ns=1))
    assert (await answer.to_end()).reason == "DEADLINE"
    runner.release()
    assert runner.num_steps == 0, "a request whose deadline has passed is never prefilled"


async def test_request_that_waits_too_long_ends_without_a_step(stub, runner):
    runner.hold()
    running = [generate(stub, start(f"r{index}", max_output_tokens=25)) for index in range(8)]
    for answer in running:
        await runner.step_until(answer.until("accepted"))
    waiting = generate(stub, start("w", max_queue_wait_ns=1))
    runner.release()
    assert (await waiting.to_end()).reason == "QUEUE_TIMEOUT"
    assert waiting.finished.timings.num_prefill_steps == 0
    for answer in running:
        assert (await answer.to_end()).reason == "LENGTH"


async def test_deadline_may_be_further_away_than_any_clock_goes(stub):
    answer = generate(stub, start("a", grant_output_tokens=1, deadline_ns=2**63 - 1, max_queue_wait_ns=2**63 - 1))
    await answer.until("preempted")
    await stub.GetStats(pb.GetStatsRequest())
    answer.write(pb.GenerateRequest(grant=pb.Grant(max_output_tokens=9)))
    assert (await answer.to_end()).reason == "LENGTH"


async def test_idle_engine_wakes_for_a_deadline(stub):
    answer = generate(stub, start("a", grant_output_tokens=1, max_output_tokens=9, deadline_ns=50_000_000))
    assert (await answer.to_end()).reason == "DEADLINE"


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
    ],
)
async def test_field_out_of_range_is_refused_by_name(stub, fields, field):
    code, reason, metadata, text = await refusal(generate(stub, start("a", **fields)))
    assert (code, reason, metadata["field"]) == ("INVALID_ARGUMENT", "INVALID_FIELD", field)
    assert text.startswith(field)
    assert (await generate(stub, start("b")).to_end()).reason == "LENGTH"


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
    assert (await generate(stub, start("a", max_output_tokens=253)).to_end()).reason == "LENGTH"


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


async def test_model_info_holds_what_the_gateway_needs(stub):
    info = await stub.GetModelInfo(pb.GetModelInfoRequest(protocol_version=1))
    assert info.name == "fake"
    assert info.tokenizer_json == b"{}"
    assert info.bos_token_id == 1
    assert list(info.eos_token_ids) == [2]
    assert not info.HasField("pad_token_id")
    assert info.HasField("unk_token_id")
    assert info.unk_token_id == 0
    assert (info.num_device_blocks, info.block_size, info.max_request_tokens) == (64, 4, 256)


async def test_stats_tell_requests_blocks_and_tenants(stub, runner):
    runner.hold()
    runner.allow(1)
    answer = generate(stub, start("a", max_output_tokens=40))
    await answer.until("token_chunk")
    stats = await runner.step_until(stub.GetStats(pb.GetStatsRequest()))
    assert (stats.running, stats.waiting, stats.paused) == (1, 0, 0)
    assert 53 <= stats.free_device_blocks < 64
    assert stats.scheduling_policy == "vtc"
    assert stats.preemption_policy == "latest_arrival"
    assert stats.num_steps >= 1
    assert [node.id for node in stats.tenants[0].path] == ["acme", "search"]
    assert stats.tenants[0].prefill_tokens == 3
    assert not stats.draining
    runner.release()
    await answer.to_end()


async def until_not_serving(health):
    async with asyncio.timeout(10):
        while (
            await health.Check(health_pb2.HealthCheckRequest())
        ).status != health_pb2.HealthCheckResponse.NOT_SERVING:
            pass


async def test_drain_waits_for_the_last_request_and_refuses_new_ones(stub, channel, runner):
    health = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING
    runner.hold()
    answer = generate(stub, start("a", max_output_tokens=9))
    await answer.until("accepted")
    draining = asyncio.ensure_future(stub.Drain(pb.DrainRequest()))
    await until_not_serving(health)
    code, reason, _, _ = await refusal(generate(stub, start("b")))
    assert (code, reason) == ("UNAVAILABLE", "DRAINING")
    assert not draining.done()
    runner.release()
    assert (await answer.to_end()).token_ids == expected_tokens(9)
    assert (await draining).finished_count == 1
    assert (await stub.GetStats(pb.GetStatsRequest())).draining


async def test_drain_of_the_process_cancels_what_outlives_the_grace_time(server, stub):
    answer = generate(stub, start("a", max_output_tokens=9, grant_output_tokens=2))
    await answer.until("preempted")
    await server.drain(grace_s=0.0)
    assert (await answer.to_end()).reason == "CANCELLED"
    assert answer.token_ids == expected_tokens(2)


async def test_failed_step_ends_its_requests_and_the_next_ones_are_served(stub, runner):
    runner.hold()
    answers = [generate(stub, start(name, max_output_tokens=100)) for name in "ab"]
    for answer in answers:
        await runner.step_until(answer.until("accepted"))
    runner.errors.append(RuntimeError("device lost: prompt [5, 6, 7]"))
    runner.release()
    for answer in answers:
        assert (await answer.to_end()).reason == "ERROR"
        assert answer.finished.error == "the engine could not compute the request"
    await until_blocks_are_free(stub)
    assert (await generate(stub, start("c")).to_end()).token_ids == expected_tokens(4)


async def test_engine_that_keeps_failing_stops_serving(server, stub, channel, runner):
    failing = asyncio.create_task(server.failure())
    runner.errors = [RuntimeError("gone")] * 3
    for name in "abc":
        assert (await generate(stub, start(name)).to_end()).reason == "ERROR"
    assert "3 steps in a row" in str(await failing)
    code, reason, _, _ = await refusal(generate(stub, start("d")))
    assert (code, reason) == ("UNAVAILABLE", "NOT_READY")
    health = health_pb2_grpc.HealthStub(channel)
    assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
