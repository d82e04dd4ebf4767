"""The demo without its machine: how much it sends, when, and what it makes of the answers."""

import io
import os
import time
from collections import abc

import grpc
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from evenflow.admin.v1.admin_pb2 import TenantStatus
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from gateway.cli.demo.command import demo_environment
from gateway.cli.demo.screen import live_lines, print_plan, print_report, print_verdict
from gateway.cli.demo.sizes import (
    BATCH,
    CHAT,
    LONG_OUTPUT_TOKENS,
    LONG_PROMPT_TOKENS,
    NUM_LONG,
    OVERHEAD,
    TARGET_S,
    Shape,
    Sizes,
    Speed,
    full_sizes,
    sizes_for,
)
from gateway.cli.demo.traffic import Clients, Experience, Run
from tests.cli.inference_server import InferenceServer, serve_inference

SMALL = Sizes(num_long=3, long=Shape(8, 4), num_short=1, short=Shape(2, 4), num_device_blocks=4)


@pytest_asyncio.fixture
async def server() -> abc.AsyncIterator[InferenceServer]:
    async with serve_inference(InferenceServer(pieces=("a", "b"), token_ids=((1, 2, 3), (4,)))) as running:
        yield running


@pytest_asyncio.fixture
async def clients(server: InferenceServer) -> abc.AsyncIterator[Clients]:
    keys = {tenant: (("authorization", f"Bearer {tenant}"),) for tenant in (BATCH, CHAT)}
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield Clients(GenerationServiceStub(channel), keys, vocabulary_size=2000)


def test_full_size_is_the_scenario_as_it_is_written():
    sizes = full_sizes()

    assert (sizes.num_long, sizes.long, sizes.num_short, sizes.short) == (24, Shape(1024, 256), 30, Shape(32, 16))
    assert sizes.num_pool_tokens == 8192
    assert sizes.engine_flags[:2] == ("--num-device-blocks", "512")


@given(st.floats(1e-6, 1e-1), st.floats(1e-4, 10.0))
def test_every_speed_gets_long_requests_that_fit_and_wait(prefill_s: float, step_s: float):
    sizes = sizes_for(Speed(prefill_s, step_s))

    assert sizes.num_long >= NUM_LONG
    assert sizes.short.num_tokens < sizes.long.num_tokens <= sizes.num_pool_tokens
    # Memory is what they wait for: a handful fits at a time.
    assert 4 <= sizes.num_pool_tokens // sizes.long.num_tokens <= 8
    assert sizes.num_long > 2 * sizes.num_pool_tokens // sizes.long.num_tokens


def test_work_is_scaled_to_the_time_there_is():
    speed = Speed(prefill_s_per_token=0.002, decode_step_s=0.1)
    sizes = sizes_for(speed)

    num_resident = 6
    prefill_s = sizes.num_long * sizes.long.num_prompt_tokens * speed.prefill_s_per_token
    decode_s = sizes.num_long * sizes.long.num_output_tokens * speed.decode_step_s / num_resident
    assert OVERHEAD * (prefill_s + decode_s) == pytest.approx(TARGET_S, rel=0.05)
    ratio = LONG_PROMPT_TOKENS / LONG_OUTPUT_TOKENS
    assert sizes.long.num_prompt_tokens / sizes.long.num_output_tokens == pytest.approx(ratio, rel=0.05)


def test_fast_machine_gets_more_long_requests_not_longer_ones():
    sizes = sizes_for(Speed(prefill_s_per_token=1e-5, decode_step_s=0.005))

    assert sizes.long == Shape(LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS)
    assert sizes.num_long > NUM_LONG


async def test_each_tenant_sends_its_share_with_its_own_key(server: InferenceServer, clients: Clients):
    run = Run(clients, SMALL)

    await run.play()

    assert sorted(server.credentials) == ["Bearer batch"] * 3 + ["Bearer chat"]
    lengths = sorted(len(spec.token_ids.ids) for spec in server.specs)
    assert lengths == [2, 8, 8, 8]
    assert all(spec.stopping.ignore_eos and spec.stopping.max_output_tokens == 4 for spec in server.specs)
    assert len({tuple(spec.token_ids.ids) for spec in server.specs}) == 4


async def test_tokens_and_waits_are_counted_for_the_tenant_that_had_them(clients: Clients):
    run = Run(clients, SMALL)

    await run.play()

    batch, chat = run.experiences[BATCH], run.experiences[CHAT]
    assert (batch.num_finished, batch.num_prompt_tokens, batch.num_output_tokens) == (3, 24, 12)
    assert (chat.num_finished, chat.num_tokens) == (1, 6)
    assert run.num_tokens_beside_flood in range(7)
    assert len(batch.first_tokens_s) == 3
    assert (batch.num_waiting, batch.num_running) == (0, 0)
    assert 0 < batch.finished_s <= run.elapsed_s


async def test_same_traffic_is_sent_again(server: InferenceServer, clients: Clients):
    for _ in range(2):
        await Run(clients, SMALL).play()

    prompts = [tuple(spec.token_ids.ids) for spec in server.specs]
    assert sorted(prompts[:4]) == sorted(prompts[4:])


async def test_refused_request_is_a_failure_with_its_reason(server: InferenceServer, clients: Clients):
    server.refusal = (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT", 1.0)
    seen = Experience()

    await clients.send(CHAT, [1000], 1, seen, time.monotonic())

    assert (seen.num_finished, seen.num_waiting, seen.num_running) == (0, 0, 0)
    assert "QUEUE_TIMEOUT" in seen.failures[0]


def test_share_of_requests_is_read_from_the_sorted_waits():
    seen = Experience(first_tokens_s=[4.0, 1.0, 3.0, 2.0])

    assert [seen.ttft_s(share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert Experience().ttft_s(0.5) is None


async def test_report_sets_the_policies_side_by_side(clients: Clients):
    runs = {policy: Run(clients, SMALL) for policy in ("fcfs", "fair")}
    for policy, wait_s in (("fcfs", 30.0), ("fair", 1.5)):
        chat, batch = runs[policy].experiences[CHAT], runs[policy].experiences[BATCH]
        chat.first_tokens_s, chat.finished_s = [wait_s], 50.0
        batch.num_prompt_tokens, batch.num_output_tokens, batch.finished_s = 3000, 1000, 40.0
        batch.first_tokens_s, runs[policy].num_tokens_beside_flood = [7.25], 1000 if policy == "fair" else 0
    runs["fair"].figures = {BATCH: TenantStatus(num_pauses=12, num_swaps_out=3, recomputed_tokens=7)}
    shown = io.StringIO()
    console = Console(file=shown, width=200)

    print_plan(console, SMALL)
    print_report(console, runs)
    print_verdict(console, runs)

    text = shown.getvalue()
    for expected in ("30.00 s", "within 1.50 s", "100 tokens a second instead of 100", "50.00 s", "12 / 3 / 7"):
        assert expected in text
    for expected in ("7.25 s", "20% of all tokens were chat's with fair, 0% with fcfs"):
        assert expected in text
    assert len(live_lines("fair", runs["fair"])) == 2


def test_settings_of_another_installation_are_left_outside():
    environment = {
        "PATH": "/bin",
        "EVENFLOW_PEPPER": "x",
        "EVENFLOW_DATABASE_URL": "x",
        "EVENFLOW_ENGINE_MAX_NUM_SEQS": "1",
        "EVENFLOW_ENGINE_MODEL": "/model",
        "EVENFLOW_ENGINE_NUM_THREADS": "3",
    }

    assert demo_environment(environment) == {
        "PATH": "/bin",
        "EVENFLOW_ENGINE_MODEL": "/model",
        "EVENFLOW_ENGINE_NUM_THREADS": "3",
    }


def test_engine_leaves_a_core_to_its_clients():
    num_threads = int(demo_environment({})["EVENFLOW_ENGINE_NUM_THREADS"])

    assert 1 <= num_threads <= max(1, os.cpu_count() - 1)
