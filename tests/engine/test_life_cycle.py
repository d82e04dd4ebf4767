"""The process with a fake model: signals, its parent's end, a device that is gone, a log that nobody reads, leaks."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.engine_process import END_S, ROOT, START_S, EngineProcess, clean_environ, engine_process, is_serving
from tests.engine.wire import expected_tokens, generate, refusal, start, until_blocks_are_free

FAKE = "tests.engine.fake_process"


@pytest.fixture
def fake(request, tmp_path):
    """A process of the kind and with the flags that the test asks for."""
    kind, *flags = getattr(request, "param", ("healthy",))
    with engine_process(f"{FAKE} {kind}", tmp_path, *flags) as process:
        if kind != "loading":
            process.wait_until_serving()
        yield process


@pytest.fixture
async def stub(fake):
    async with grpc.aio.insecure_channel(fake.target) as channel:
        yield engine_pb2_grpc.EngineServiceStub(channel)


async def until_refused(stub):
    """A signal is on its way until then."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while True:
            await generate(stub, start("late", max_output_tokens=1)).to_end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_lets_streams_end_refuses_new_ones_and_exits_with_zero(fake, stub, number):
    answer = generate(stub, start("a", max_output_tokens=200))
    await answer.until("token_chunk")
    fake.process.send_signal(number)
    await until_refused(stub)
    assert (await refusal(generate(stub, start("later"))))[:2] == ("UNAVAILABLE", "DRAINING")
    assert (await answer.to_end()).token_ids == expected_tokens(200)
    assert answer.reason == "LENGTH"
    assert fake.exit_code() == 0
    assert not fake.socket.exists()


@pytest.mark.parametrize("fake", [("healthy", "--grace-s", "0")], indirect=True)
async def test_streams_that_outlive_the_grace_time_are_cancelled(fake, stub):
    answer = generate(stub, start("a", max_output_tokens=200, grant_output_tokens=3))
    await answer.until("preempted")
    fake.process.send_signal(signal.SIGTERM)
    assert (await answer.to_end()).reason == "CANCELLED"
    assert answer.token_ids == expected_tokens(3)
    assert fake.exit_code() == 0


async def test_second_signal_ends_the_process_at_once(fake, stub):
    answer = generate(stub, start("a", max_output_tokens=200, grant_output_tokens=3))
    await answer.until("preempted")
    fake.process.send_signal(signal.SIGTERM)
    await until_refused(stub)
    fake.process.send_signal(signal.SIGTERM)
    assert fake.exit_code() == 128 + signal.SIGTERM
    with pytest.raises(grpc.aio.AioRpcError):
        await answer.to_end()


@pytest.mark.parametrize("fake", [("loading",)], indirect=True)
def test_signal_while_loading_ends_the_process(fake):
    with grpc.insecure_channel(fake.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        response = health.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=START_S)
    assert response.status == health_pb2.HealthCheckResponse.NOT_SERVING
    fake.process.send_signal(signal.SIGTERM)
    assert fake.exit_code() == 0


@pytest.mark.parametrize("fake", [("broken",)], indirect=True)
async def test_device_that_is_gone_ends_the_process_so_that_it_is_started_again(fake, stub):
    for name in "abc":
        assert (await generate(stub, start(name)).to_end()).reason == "ERROR"
    assert fake.exit_code() == 1
    events = [json.loads(line) for line in fake.log.splitlines()]
    failures = [event for event in events if event["event"] == "step failed"]
    assert len(failures) == 3
    assert "the device is gone" in failures[0]["exception"]


@pytest.mark.parametrize("fake", [("broken", "--log-format", "console")], indirect=True)
async def test_log_of_a_failure_shows_no_prompt(fake, stub):
    prompt = [987, 986, 985, 984]
    await generate(stub, start("a", prompt=prompt)).to_end()
    fake.process.send_signal(signal.SIGTERM)
    assert fake.exit_code() == 0
    assert "the device is gone" in fake.log
    # One token alone proves nothing: a time has six digits after the point.
    assert not re.search(r"987\D{1,3}986", fake.log)


async def test_thousands_of_cancelled_streams_leave_memory_and_files_flat(fake, stub):
    process = psutil.Process(fake.process.pid)

    async def cancel_one(index: int) -> None:
        answer = generate(stub, start(f"c{index}", max_output_tokens=200, grant_output_tokens=2))
        await answer.until("accepted")
        answer.cancel_rpc()

    async def cancel_many(num_streams: int) -> tuple[int, int]:
        for first in range(0, num_streams, 50):
            await asyncio.gather(*(cancel_one(first + offset) for offset in range(50)))
        await until_blocks_are_free(stub)
        return process.num_fds(), process.memory_info().rss

    num_files, memory = await cancel_many(1000)
    num_files_later, memory_later = await cancel_many(2000)
    assert num_files_later <= num_files
    assert memory_later - memory < 4 << 20, "two kilobytes a stream"


async def test_log_that_nobody_reads_any_more_stops_nothing(tmp_path):
    command = [sys.executable, "-m", FAKE, "healthy", "--listen", f"unix:{tmp_path}/e.sock"]
    process = subprocess.Popen(command, cwd=ROOT, env=clean_environ(), stderr=subprocess.PIPE)  # noqa: ASYNC220  never waited for
    engine = EngineProcess(process, tmp_path / "e.sock", tmp_path / "none.log")
    try:
        engine.wait_until_serving()
        process.stderr.close()
        async with grpc.aio.insecure_channel(engine.target) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(channel)
            assert (await generate(stub, start("a")).to_end()).token_ids == expected_tokens(4)
        process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == 0
    finally:
        process.kill()
        process.wait()


PARENT = """
import os, subprocess, sys
words = [word.replace("PARENT", str(os.getpid())) for word in sys.argv[1:]]
child = subprocess.Popen([sys.executable, "-m", *words])
print(child.pid, flush=True)
child.wait()
"""


def test_engine_whose_parent_ended_before_it_looked_ends_at_once(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    with engine_process(f"{FAKE} loading", tmp_path, "--parent-pid", str(parent.pid)) as engine:
        assert engine.exit_code() == 0
    assert not engine.socket.exists()


@pytest.mark.parametrize("stays", [False, True])
def test_engine_ends_with_its_parent_if_it_is_told_to(tmp_path, stays):
    log_path, flags = tmp_path / "engine.log", [] if stays else ["--parent-pid", "PARENT"]
    command = [sys.executable, "-c", PARENT, FAKE, "healthy", "--listen", f"unix:{tmp_path}/e.sock", *flags]
    with log_path.open("wb") as log:
        parent = subprocess.Popen(command, cwd=ROOT, env=clean_environ(), stdout=subprocess.PIPE, stderr=log)
    engine = psutil.Process(int(parent.stdout.readline()))
    try:
        EngineProcess(parent, tmp_path / "e.sock", log_path).wait_until_serving()
        parent.kill()
        parent.wait()
        if stays:
            with grpc.insecure_channel(f"unix:{tmp_path}/e.sock") as channel:
                assert is_serving(health_pb2_grpc.HealthStub(channel))
        else:
            engine.wait(END_S)
    finally:
        parent.stdout.close()
        if engine.is_running():
            engine.kill()
    assert (tmp_path / "e.sock").exists() == stays
