"""What a gateway says to an engine, with defaults, and what it makes of the answers."""

import asyncio

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.fake_runner import FIRST_TOKEN

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
FINISHED_REASON = {value: name.removeprefix("FINISH_REASON_") for name, value in pb.FinishReason.items()}


def start(
    generation_id: str, *, prompt=(5, 6, 7), sampling=None, tenant=("acme", "search"), **fields
) -> pb.GenerateRequest:
    fields = {"max_output_tokens": 4, "protocol_version": 1} | fields
    return pb.GenerateRequest(
        start=pb.StartGeneration(
            generation_id=generation_id,
            path=[pb.WeightedNode(id=node, weight=1.0) for node in tenant],
            priority_class=pb.PriorityClass(name="default", rank=100, preemptible=True),
            prompt_token_ids=prompt,
            sampling=pb.Sampling(**(SAMPLING | (sampling or {}))),
            **fields,
        )
    )


def cancel(reason=pb.CANCEL_REASON_CLIENT) -> pb.GenerateRequest:
    return pb.GenerateRequest(cancel=pb.Cancel(reason=reason))


class Answer:
    """One call: what is written to it, which never waits, and what has come of it so far."""

    def __init__(self, method, **call_options) -> None:
        self._outbox: asyncio.Queue[pb.GenerateRequest | None] = asyncio.Queue()
        self._call = method(self._requests(), **call_options)
        self._responses = self._call.__aiter__()
        self.messages: list[pb.GenerateResponse] = []

    @property
    def token_ids(self) -> list[int]:
        return [token_id for message in self.messages for token_id in message.token_chunk.token_ids]

    @property
    def kinds(self) -> list[str]:
        return [message.WhichOneof("message") for message in self.messages]

    @property
    def finished(self) -> pb.Finished:
        assert self.kinds.count("finished") == 1, self.kinds
        assert self.kinds[-1] == "finished", self.kinds
        return self.messages[-1].finished

    @property
    def reason(self) -> str:
        return FINISHED_REASON[self.finished.reason]

    def write(self, message: pb.GenerateRequest) -> None:
        self._outbox.put_nowait(message)

    def half_close(self) -> None:
        self._outbox.put_nowait(None)

    def cancel_rpc(self) -> None:
        self.half_close()
        self._call.cancel()

    async def read(self) -> pb.GenerateResponse | None:
        """The next message; None after the last. Raises the call's error."""
        try:
            message = await anext(self._responses, None)
        except grpc.aio.AioRpcError as error:
            # How this library calls it when a write of ours met the end of a call that had gone well.
            if self.kinds[-1:] != ["finished"] or error.details() != "Internal error from Core":
                raise
            message = None
        if message is None:
            self.half_close()  # the transport would wait for the next request for ever
        else:
            self.messages.append(message)
        return message

    async def until(self, kind: str) -> pb.GenerateResponse:
        """Read up to and including the next message of that kind."""
        while (message := await self.read()) is not None:
            if message.WhichOneof("message") == kind:
                return message
        raise AssertionError(f"the stream ended after {self.kinds}")

    async def to_end(self) -> "Answer":
        """Read everything. Raises the call's error."""
        while await self.read() is not None:
            pass
        return self

    async def _requests(self):
        while (message := await self._outbox.get()) is not None:
            yield message


def generate(stub, request: pb.GenerateRequest, **call_options) -> Answer:
    """A call whose first message is `request`."""
    answer = Answer(stub.Generate, **call_options)
    answer.write(request)
    return answer


async def refusal(answer: Answer) -> tuple[str, str, dict[str, str], str]:
    """Status code, reason, metadata and text of a call that is refused."""
    try:
        await answer.to_end()
    except grpc.aio.AioRpcError as error:
        status = rpc_status.from_call(error)
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert info.domain == "evenflow"
        return error.code().name, info.reason, dict(info.metadata), error.details()
    raise AssertionError(f"accepted: {answer.kinds}")


def expected_tokens(num_tokens: int) -> list[int]:
    """What FakeRunner makes of any prompt."""
    return [FIRST_TOKEN + index for index in range(num_tokens)]


async def until_blocks_are_free(stub, timeout_s: float = 20.0) -> pb.GetStatsResponse:
    """The engine's figures once nothing holds a block or waits."""
    async with asyncio.timeout(timeout_s):
        while True:
            stats = await stub.GetStats(pb.GetStatsRequest())
            if stats.free_device_blocks == stats.num_device_blocks and not stats.running + stats.waiting + stats.paused:
                return stats
            await asyncio.sleep(0.01)
