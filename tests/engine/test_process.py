"""The real engine, with the default model, as a process of its own, over its real socket."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys

import grpc
import psutil
import pytest

from engine.commands.engine import EXIT_START
from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.engine_process import ROOT, clean_environ, engine_process
from tests.engine.wire import Answer, cancel, generate, refusal, start, until_blocks_are_free

FLAGS = (
    *("--num-threads", "1", "--num-device-blocks", "512", "--max-num-seqs", "32", "--max-num-batched-tokens", "128"),
    *("--speculation", "ngram", "--num-draft-tokens", "3"),
)
GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROMPT = [1, 4093, 198, 28120, 905, 338, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
MIB = 1 << 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with engine_process("engine", tmp_path_factory.mktemp("engine"), *FLAGS) as process:
        process.wait_until_serving()
        yield process


@contextlib.asynccontextmanager
async def connected(engine):
    """A stub on a connection of its own, which sends messages of any size."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(engine.target, options) as channel:
        yield engine_pb2_grpc.EngineServiceStub(channel)


@pytest.fixture
async def stub(engine):
    async with connected(engine) as stub:
        yield stub
        await until_blocks_are_free(stub)


def ask(stub, name: str, num_tokens: int, **fields) -> Answer:
    return generate(stub, start(name, prompt=PROMPT, sampling=GREEDY, max_output_tokens=num_tokens, **fields))


async def test_same_prompt_gives_the_same_tokens_alone_and_in_company(stub):
    alone = await ask(stub, "alone", 12).to_end()
    together = await asyncio.gather(*(ask(stub, f"t{index}", 12).to_end() for index in range(5)))
    assert alone.reason == "LENGTH"
    assert len(alone.token_ids) == 12
    assert len(set(alone.token_ids)) > 3
    assert all(answer.token_ids == alone.token_ids for answer in together)


async def test_model_ends_its_answer_by_itself(stub):
    sampling = {"temperature": 0.0}
    answer = await generate(stub, start("a", prompt=PROMPT, sampling=sampling, max_output_tokens=200)).to_end()
    info = await stub.GetModelInfo(pb.GetModelInfoRequest(protocol_version=1))
    assert answer.reason == "STOP"
    assert answer.token_ids[-1] in info.eos_token_ids
    assert not set(answer.token_ids[:-1]) & set(info.eos_token_ids)


async def test_model_info_describes_the_default_model(stub):
    info = await stub.GetModelInfo(pb.GetModelInfoRequest(protocol_version=1))
    assert "SmolLM2" in info.name
    assert info.architecture == "llama"
    assert info.context_tokens == 8192
    assert info.max_request_tokens == info.context_tokens == info.num_device_blocks * info.block_size
    assert b'"model"' in info.tokenizer_json
    assert "im_start" in info.chat_template
    assert len(info.model_hash) == 64


async def test_a_hundred_streams_at_once_each_get_all_their_tokens(stub):
    answers = await asyncio.gather(*(ask(stub, f"s{index}", 1 + index % 5).to_end() for index in range(100)))
    longest = max(answers, key=lambda answer: len(answer.token_ids)).token_ids
    for index, answer in enumerate(answers):
        assert answer.reason == "LENGTH"
        assert answer.token_ids == longest[: 1 + index % 5]


async def test_logprobs_come_with_every_token(stub):
    answer = await generate(
        stub, start("a", prompt=PROMPT, sampling=GREEDY | {"num_logprobs": 3}, max_output_tokens=4)
    ).to_end()
    logprobs = [entry for message in answer.messages for entry in message.token_chunk.logprobs]
    assert len(logprobs) == len(answer.token_ids) == 4
    for token_id, entry in zip(answer.token_ids, logprobs, strict=True):
        assert len(entry.top_token_ids) == 3
        assert entry.top_token_ids[0] == token_id, "greedy takes the likeliest"
        assert entry.logprob == pytest.approx(entry.top_logprobs[0])


async def test_guesses_at_a_text_that_repeats_itself_are_counted_and_can_be_refused(stub):
    prompt = list(range(300, 330)) * 4
    before = await stub.GetStats(pb.GetStatsRequest())
    asked = [
        await generate(stub, start(name, prompt=prompt, sampling=GREEDY, max_output_tokens=16, **fields)).to_end()
        for name, fields in (("with", {}), ("without", {"speculation": False}))
    ]
    usage, plain_usage = (answer.finished.usage for answer in asked)
    assert [len(answer.token_ids) for answer in asked] == [16, 16]
    assert 0 <= usage.accepted_draft_tokens <= usage.drafted_tokens
    assert usage.drafted_tokens > 0
    assert plain_usage.drafted_tokens == plain_usage.accepted_draft_tokens == 0
    stats = await stub.GetStats(pb.GetStatsRequest())
    assert (stats.speculation, stats.draft_model, stats.num_draft_tokens) == ("ngram", "", 3)
    assert stats.drafted_tokens - before.drafted_tokens == usage.drafted_tokens
    assert stats.accepted_draft_tokens - before.accepted_draft_tokens == usage.accepted_draft_tokens
    assert sum(tenant.drafted_tokens for tenant in stats.tenants) == stats.drafted_tokens
    assert sum(tenant.accepted_draft_tokens for tenant in stats.tenants) == stats.accepted_draft_tokens


CLIENT = """
import asyncio, sys
import grpc
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.test_process import ask

async def main():
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        answer = ask(engine_pb2_grpc.EngineServiceStub(channel), "killed", 8000)
        await answer.until("token_chunk")
        print("streaming", flush=True)
        await answer.to_end()

asyncio.run(main())
"""


async def test_client_that_is_killed_frees_its_blocks(engine, stub):
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, engine.target, cwd=ROOT, env=clean_environ(), stdout=asyncio.subprocess.PIPE
    )
    assert await client.stdout.readline() == b"streaming\n"
    assert (await stub.GetStats(pb.GetStatsRequest())).running == 1
    client.kill()
    await client.communicate()
    stats = await until_blocks_are_free(stub)
    assert stats.tenants[0].output_tokens < 8000


async def test_cancels_and_disconnects_free_their_blocks(engine, stub):
    cancelled = ask(stub, "cancelled", 4000)
    await cancelled.until("token_chunk")
    cancelled.write(cancel())
    assert (await cancelled.to_end()).reason == "CANCELLED"
    half_closed = ask(stub, "half-closed", 4)
    half_closed.half_close()
    assert (await half_closed.to_end()).reason == "LENGTH"
    async with connected(engine) as other:
        answer = ask(other, "cut", 4000)
        await answer.until("token_chunk")
        answer.half_close()
    await until_blocks_are_free(stub)


async def test_cancelled_streams_leave_blocks_and_files_flat(engine, stub):
    process = psutil.Process(engine.process.pid)

    async def cancel_many(num_streams: int) -> int:
        answers = [ask(stub, f"c{index}", 2000) for index in range(num_streams)]
        for index, answer in enumerate(answers):
            await answer.until("accepted" if index % 2 else "admitted")
            answer.cancel_rpc()
        await until_blocks_are_free(stub)
        return process.num_fds()

    num_files = await cancel_many(20)
    assert await cancel_many(100) <= num_files


async def test_prompt_of_ten_megabytes_is_refused_and_a_larger_one_by_the_transport(stub):
    code, reason, _, _ = await refusal(generate(stub, start("a", prompt=[40000] * (10 * MIB // 3))))
    assert (code, reason) == ("INVALID_ARGUMENT", "CONTEXT_LENGTH")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(stub, start("a", prompt=[40000] * (65 * MIB // 3))).to_end()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await ask(stub, "b", 2).to_end()).reason == "LENGTH"


async def test_connection_that_speaks_no_grpc_harms_nobody(engine, stub):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(engine.socket))
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 100)
    assert (await ask(stub, "a", 2).to_end()).reason == "LENGTH"


def test_second_engine_on_the_socket_names_it_and_leaves_the_first_alone(engine):
    command = [sys.executable, "-m", "engine", "--listen", engine.target]
    result = subprocess.run(command, cwd=ROOT, env=clean_environ(), capture_output=True, text=True, check=False)
    assert result.returncode == EXIT_START
    assert str(engine.socket) in result.stderr
    engine.wait_until_serving()


async def test_sigterm_in_the_middle_of_a_stream_drains(tmp_path):
    with engine_process("engine", tmp_path, *FLAGS) as engine:
        engine.wait_until_serving()
        async with connected(engine) as stub:
            answer = ask(stub, "a", 40)
            await answer.until("token_chunk")
            engine.process.send_signal(signal.SIGTERM)
            assert (await answer.to_end()).reason == "LENGTH"
            assert len(answer.token_ids) == 40
        assert engine.exit_code() == 0
        assert not engine.socket.exists()
        assert '"percent": 100' in engine.log
