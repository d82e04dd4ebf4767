"""Under random cancels, disconnects, deadlines, pauses and preemptions every accepted request ends once, and every
token reaches its client once and in order. Everything is real but the model.
"""

import asyncio
import gc
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server.intake import Call
from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from tests.engine.conftest import connected, running
from tests.engine.fake_runner import FakeRunner
from tests.engine.wire import Answer, cancel, expected_tokens, generate, start, until_blocks_are_free

STEP_S = 0.001  # so that what the clients do falls into the middle of things
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Client:
    """What one client does. `act` happens once it has `act_after` tokens, or never if the output is shorter."""

    num_prompt_tokens: int
    max_output_tokens: int
    tenant: str
    act: str
    act_after: int
    grant: int | None
    deadline_ns: int | None

    @property
    def request_fields(self) -> dict:
        fields = {"prompt": [5] * self.num_prompt_tokens, "tenant": ("acme", self.tenant)}
        fields["max_output_tokens"] = self.max_output_tokens
        if self.grant is not None and self.act != "half_close":  # which could not raise it
            fields["grant_output_tokens"] = self.grant
        if self.deadline_ns is not None:
            fields["deadline_ns"] = self.deadline_ns
        return fields


CLIENTS = st.builds(
    Client,
    num_prompt_tokens=st.integers(1, 90),
    max_output_tokens=st.integers(1, 160),
    tenant=st.sampled_from(("a", "b", "c")),
    act=st.sampled_from(("read", "read", "cancel", "stop", "cancel_rpc", "disconnect", "half_close", "stall")),
    act_after=st.integers(0, 40),
    grant=st.none() | st.integers(0, 20),
    deadline_ns=st.none() | st.integers(-1, 150_000_000),
)


async def play(client: Client, name: str, tmp_path: Path) -> Answer:
    """One client's life; the answer holds what it received."""
    async with connected(tmp_path) as channel:
        answer = generate(engine_pb2_grpc.EngineServiceStub(channel), start(name, **client.request_fields))
        has_acted, has_granted = False, client.grant is None
        while await answer.read() is not None:
            if not has_granted and len(answer.token_ids) >= client.grant:
                has_granted = True
                answer.write(pb.GenerateRequest(grant=pb.Grant(max_output_tokens=client.max_output_tokens)))
            if not has_acted and len(answer.token_ids) >= client.act_after:
                has_acted = True
                if not act(client.act, answer):
                    break
    return answer


def act(what: str, answer: Answer) -> bool:
    """False if the client goes without waiting for the end."""
    match what:
        case "cancel":
            answer.write(cancel())
        case "stop":
            answer.write(cancel(pb.CANCEL_REASON_STOP_STRING))
        case "stall":
            answer.write(pb.GenerateRequest(reader_blocked=pb.ReaderBlocked()))
            answer.write(pb.GenerateRequest(reader_ready=pb.ReaderReady()))
        case "half_close":
            answer.half_close()
        case "cancel_rpc":
            answer.cancel_rpc()
            return False
        case "disconnect":
            answer.half_close()
            return False
    return True


async def everyone_plays(clients: list[Client], tmp_path: Path) -> list[Answer]:
    async with running(FakeRunner(step_s=STEP_S), tmp_path) as server, connected(tmp_path) as channel:
        plays = (play(client, f"g{index}", tmp_path) for index, client in enumerate(clients))
        answers = await asyncio.wait_for(asyncio.gather(*plays), 60)
        await until_blocks_are_free(engine_pb2_grpc.EngineServiceStub(channel))
        await server.drain(grace_s=10)
    return answers


@SETTINGS
@given(st.lists(CLIENTS, min_size=1, max_size=14))
def test_every_request_ends_once_and_every_token_comes_once_in_order(clients):
    with tempfile.TemporaryDirectory() as folder, structlog.testing.capture_logs() as logs:
        answers = asyncio.run(everyone_plays(clients, Path(folder)))
    ends = Counter(line["generation_id"] for line in logs if line["event"] == "request finished")
    assert ends == {f"g{index}": 1 for index in range(len(clients))}
    for client, answer in zip(clients, answers, strict=True):
        assert answer.token_ids == expected_tokens(len(answer.token_ids))
        assert answer.kinds[0] == "accepted"
        if client.act not in ("cancel_rpc", "disconnect") or answer.kinds[-1] == "finished":
            assert answer.finished.usage.output_tokens == len(answer.token_ids)
            assert answer.reason in {"LENGTH", "CANCELLED", "STOP", "DEADLINE"}
            if answer.reason == "LENGTH":
                assert len(answer.token_ids) == client.max_output_tokens


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def cancel_streams(stub, num_streams: int) -> None:
    """Streams in batches, each cancelled by one of the three ways, most of them half way."""
    for first in range(0, num_streams, 20):
        answers = [
            generate(stub, start(f"g{first + i}", max_output_tokens=200, grant_output_tokens=2)) for i in range(20)
        ]
        for index, answer in enumerate(answers):
            if index % 3:
                await answer.until("accepted")
            if index % 2:
                answer.cancel_rpc()
            else:
                answer.write(cancel())
                assert (await answer.to_end()).reason == "CANCELLED"


async def test_a_thousand_cancelled_streams_leave_nothing_behind(stub):
    await cancel_streams(stub, 100)
    await until_blocks_are_free(stub)
    num_files = num_open_files()
    await cancel_streams(stub, 1000)
    stats = await until_blocks_are_free(stub)
    assert stats.free_device_blocks == stats.num_device_blocks
    assert num_open_files() <= num_files
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Call]
