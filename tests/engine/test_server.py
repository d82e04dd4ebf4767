"""The service over a real socket, with a fake model: streams, cancels, figures, draining, failures."""

import asyncio

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine.settings import EngineSettings
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.conftest import connected
from tests.engine.wire import cancel, expected_tokens, generate, refusal, start, until_blocks_are_free


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


@pytest.mark.parametrize(
    ("sampling", "num_tokens", "reason"),
    [
        ({"stop_token_ids": [12]}, 3, "STOP"),
        ({"stop_token_ids": [12], "ignore_eos": True}, 3, "STOP"),
        ({}, 231, "STOP"),  # token 240 ends the fake model's text
        ({"ignore_eos": True}, 235, "LENGTH"),
    ],
)
async def test_stop_tokens_and_the_models_own_end_the_output_and_belong_to_it(stub, sampling, num_tokens, reason):
    answer = await generate(stub, start("a", max_output_tokens=235, sampling=sampling)).to_end()
    assert answer.token_ids == expected_tokens(num_tokens)
    assert answer.reason == reason


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


async def test_model_info_holds_what_the_gateway_needs(stub):
    info = await stub.GetModelInfo(pb.GetModelInfoRequest(protocol_version=1))
    assert info.name == "fake"
    assert info.tokenizer_json == b"{}"
    assert info.bos_token_id == 1
    assert list(info.eos_token_ids) == [240]
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
    assert stats.scheduling_policy == EngineSettings.model_fields["scheduling_policy"].default
    assert stats.preemption_policy == EngineSettings.model_fields["preemption_policy"].default
    assert stats.preemption_mode == "auto"
    assert stats.prices.step.prefill_token_ns > 0
    assert stats.num_steps >= 1
    assert [node.id for node in stats.tenants[0].path] == ["acme", "search"]
    assert stats.tenants[0].prefill_tokens == 3
    assert (stats.tenants[0].share, stats.tenants[0].weight_share) == (1.0, 1.0)
    assert (stats.HasField("new_request_wait_ns"), stats.new_request_wait_ns) == (True, 0)
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
