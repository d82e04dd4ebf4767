"""An engine that does what a test tells it: the real wire over a real Unix socket, a script in place of a model.

Its tokenizer has one token per byte, so the ids of an output are the bytes of its text.
"""

import asyncio
from collections import abc
from functools import cache
from pathlib import Path

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from tests.gateway.fake_many import ManyStream

END_TOKEN = 256
VOCABULARY_SIZE = 258
CONTEXT_TOKENS = 4096
MAX_REQUEST_TOKENS = 2048
MODEL = "bytes"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
QUEUE_NS, PREFILL_NS, DECODE_NS = 1_000_000, 2_000_000, 3_000_000
ARRIVED_UNIX_NS = 1_700_000_000_000_000_000

Script = abc.Callable[["FakeCall"], abc.Awaitable[None]]


@cache
def byte_tokenizer_json() -> bytes:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = [character for character in alphabet if ord(character) < 256]
    moved = [character for character in alphabet if ord(character) >= 256]
    bytes_left = [byte for byte in range(256) if chr(byte) not in own]
    vocabulary = {character: ord(character) for character in own} | dict(zip(moved, bytes_left, strict=True))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>", "<|begin|>"])
    return tokenizer.to_str().encode()


async def abort(context, code: grpc.StatusCode, reason: str, message: str, **metadata: str) -> None:
    """End the call as the engine does."""
    detail = AnyMessage()
    detail.Pack(error_details_pb2.ErrorInfo(domain="evenflow", reason=reason, metadata=metadata))
    status = status_pb2.Status(code=code_pb2.Code.Value(code.name), message=message, details=[detail])
    await context.abort_with_status(rpc_status.to_status(status))


# Of a small model on two cores: 10 ms for a step, and what it holds.
PRICES = pb.Prices(
    copy_out_block_ns=1e5,
    copy_in_block_ns=1e5,
    step=pb.StepCosts(base_ns=1e7, prefill_token_ns=5e5, prefill_key_ns=50, decode_ns=3e6, decode_key_ns=400),
    measured=True,
)


class FakeCall:
    """One `Generate` call, driven by a script."""

    def __init__(self, start: pb.StartGeneration, context, metadata: dict[str, str]) -> None:
        self.start = start
        self.metadata = metadata
        self.controls: list[pb.GenerateRequest] = []
        self.num_emitted = 0
        self.is_aborted = False
        self.is_held = False
        self.ended = asyncio.Event()
        self._context = context
        self._new_control = asyncio.Event()

    async def accept(self) -> None:
        await self._write(accepted=pb.Accepted(protocol_version=1))

    async def admit(self) -> None:
        await self._write(admitted=pb.Admitted(queue_ns=QUEUE_NS))

    async def emit(self, text: bytes | list[int], logprobs: list[pb.TokenLogprobs] | None = None) -> None:
        self.num_emitted += len(text)
        await self._write(token_chunk=pb.TokenChunk(token_ids=list(text), logprobs=logprobs or []))

    async def find(
        self,
        rank: int,
        text: bytes | list[int],
        score: float,
        reason=pb.FINISH_REASON_STOP,
        logprobs: list[pb.TokenLogprobs] | None = None,
    ) -> None:
        """One output of a beam search."""
        beam = pb.BeamResult(score=score, cumulative_logprob=score * len(text), reason=reason)
        await self._write(
            token_chunk=pb.TokenChunk(index=rank, token_ids=list(text), logprobs=logprobs or [], beam=beam)
        )

    async def score(self, prompt_logprobs: list[pb.TokenLogprobs]) -> None:
        """Tell of the prompt's next tokens."""
        await self._write(token_chunk=pb.TokenChunk(prompt_logprobs=prompt_logprobs))

    async def preempt(self, mode=pb.PREEMPTION_MODE_RECOMPUTE, reason=pb.PAUSE_REASON_KV_PRESSURE) -> None:
        await self._write(preempted=pb.Preempted(mode=mode, reason=reason))

    async def resume(self) -> None:
        await self._write(resumed=pb.Resumed())

    async def finish(
        self,
        reason=pb.FINISH_REASON_LENGTH,
        *,
        output_tokens: int | None = None,
        error: str = "",
        error_fields: abc.Sequence[str] = (),
        cancel_reason=pb.CANCEL_REASON_UNSPECIFIED,
        queue_ns: int = QUEUE_NS,
        cached_tokens: int = 0,
    ) -> None:
        usage = pb.Usage(
            prompt_tokens=len(self.start.prompt_token_ids),
            cached_prompt_tokens=cached_tokens,
            output_tokens=self.num_emitted if output_tokens is None else output_tokens,
        )
        timings = pb.Timings(
            arrived_unix_ns=ARRIVED_UNIX_NS, queue_ns=queue_ns, prefill_ns=PREFILL_NS, decode_ns=DECODE_NS
        )
        end = {"reason": reason, "error": error, "error_fields": error_fields, "cancel_reason": cancel_reason}
        await self._write(finished=pb.Finished(usage=usage, timings=timings, **end))

    async def refuse(self, code: grpc.StatusCode, reason: str, message: str = "refused") -> None:
        await abort(self._context, code, reason, message)

    async def refuse_field(self, field: str, problem: str) -> None:
        """End the call as the engine does where a field is wrong."""
        message = f"{field} {problem}"
        await abort(self._context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", message, field=field)

    async def control(self, kind: str) -> pb.GenerateRequest:
        """The first control message of this kind; waits for it."""
        while True:
            for message in self.controls:
                if message.WhichOneof("message") == kind:
                    return message
            self._new_control.clear()
            await self._new_control.wait()

    async def until_cancelled(self, reason=pb.FINISH_REASON_CANCELLED) -> None:
        """Do nothing until the gateway cancels, then finish."""
        await self.control("cancel")
        await self.finish(reason)

    async def read_controls(self, requests) -> None:
        async for request in requests:
            self.controls.append(request)
            if request.WhichOneof("message") in ("reader_blocked", "reader_ready"):
                self.is_held = request.HasField("reader_blocked")
            self._new_control.set()

    async def _write(self, **message) -> None:
        await self._context.write(pb.GenerateResponse(**message))


async def hello(call: FakeCall) -> None:
    """A short, complete output."""
    await call.accept()
    await call.admit()
    await call.emit(b"hello")
    await call.emit([END_TOKEN])
    await call.finish(pb.FINISH_REASON_STOP)


async def stalled(call: FakeCall) -> None:
    """In the queue for ever; answers a cancellation."""
    await call.accept()
    await call.until_cancelled()


async def begun(call: FakeCall) -> None:
    """Three tokens, then nothing until it is cancelled."""
    await call.accept()
    await call.admit()
    await call.emit(b"abc")
    await call.until_cancelled()


async def deaf(call: FakeCall) -> None:
    """Three tokens, then nothing, not even an answer."""
    await call.accept()
    await call.admit()
    await call.emit(b"abc")
    await asyncio.Event().wait()


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Serves on `address` from `start` to `stop`; may be started again."""

    def __init__(self, path: Path) -> None:
        self.address = f"unix:{path}"
        self.script: Script = hello
        self.calls: list[FakeCall] = []
        self.info = pb.GetModelInfoResponse(
            protocol_version=1,
            name=MODEL,
            architecture="llama",
            dtype="float32",
            parameter_count=1,
            context_tokens=CONTEXT_TOKENS,
            max_request_tokens=MAX_REQUEST_TOKENS,
            vocabulary_size=VOCABULARY_SIZE,
            tokenizer_json=byte_tokenizer_json(),
            chat_template=CHAT_TEMPLATE,
            eos_token_ids=[END_TOKEN],
            block_size=16,
            num_device_blocks=128,
            generates_many=True,
        )
        self.info_refusal: tuple[grpc.StatusCode, str] | None = None
        self.num_info_calls = 0
        self.num_shared_streams = 0
        self.shared_messages: list[pb.GenerateManyRequest] = []
        self.is_draining = False
        self.num_waiting = 0
        self.lost_steps = self.requeues = 0
        self.new_request_wait_ns: int | None = None
        self.weights: dict[tuple[str, ...], tuple[float, int]] = {}
        self.classes: dict[str, pb.PriorityClass] = {}
        self.num_updates = 0
        self.tenants: list[pb.TenantStats] = []
        self.requests: list[pb.RequestSummary] = []
        self.cancelled: list[pb.CancelRequestsRequest] = []
        self.usages: list[pb.StreamUsageResponse] = []
        self.ledger_ids: list[str] = []
        self.acknowledged: list[int] = []
        self._server: grpc.aio.Server | None = None
        self._new_call = asyncio.Event()

    async def start(self) -> None:
        self._server = grpc.aio.server()
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    def renew(self) -> None:
        """Answers as a new one, and remembers no call."""
        self.script = hello
        self.calls.clear()
        self.shared_messages.clear()

    async def stop(self) -> None:
        """Gone at once, as a crash would be."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def call(self, index: int = 0) -> FakeCall:
        """The call of this number; waits for it."""
        while len(self.calls) <= index:
            self._new_call.clear()
            await self._new_call.wait()
        return self.calls[index]

    async def Generate(self, request_iterator, context):  # noqa: N802 - the name is the protocol's
        first = await anext(aiter(request_iterator))
        call = FakeCall(first.start, context, dict(context.invocation_metadata()))
        self.calls.append(call)
        self._new_call.set()
        reader = asyncio.create_task(call.read_controls(request_iterator))
        try:
            await self.script(call)
        except asyncio.CancelledError:
            call.is_aborted = True
            raise
        finally:
            reader.cancel()
            call.ended.set()

    async def GenerateMany(self, request_iterator, context):  # noqa: N802
        self.num_shared_streams += 1
        await ManyStream(self.Generate, context, self.shared_messages).serve(request_iterator)

    async def StreamUsage(self, request_iterator, context):  # noqa: N802
        """Tells `usages`, whoever asks, and waits for what is acknowledged."""
        requests = aiter(request_iterator)
        self.ledger_ids.append((await anext(requests)).ledger_id)
        for usage in self.usages:
            yield usage
        async for request in requests:
            self.acknowledged.append(request.after_sequence)

    async def GetModelInfo(self, request, context):  # noqa: N802
        self.num_info_calls += 1
        if self.info_refusal is not None:
            await abort(context, *self.info_refusal, "refused")
        return self.info

    async def GetStats(self, request, context):  # noqa: N802
        return pb.GetStatsResponse(
            scheduling_policy="vtc",
            scheduling_options={"output_cost": "3"},
            preemption_policy="over_served",
            preemption_mode="auto",
            prices=PRICES,
            running=len(self.calls),
            waiting=self.num_waiting,
            new_request_wait_ns=self.new_request_wait_ns,
            num_device_blocks=128,
            free_device_blocks=128,
            block_size=16,
            draining=self.is_draining,
            lost_steps=self.lost_steps,
            requeues=self.requeues,
            tenants=self.tenants,
        )

    async def ListRequests(self, request, context):  # noqa: N802
        first = int(request.page_token or 0)
        end = first + request.page_size
        token = str(end) if end < len(self.requests) else ""
        return pb.ListRequestsResponse(requests=self.requests[first:end], next_page_token=token)

    async def ExplainRequest(self, request, context):  # noqa: N802
        for position, found in enumerate(self.requests):
            if found.generation_id == request.generation_id:
                return pb.ExplainRequestResponse(
                    request=found,
                    position=position,
                    ahead=self.requests[:position],
                    blocked_by="order" if position else "rows",
                    scheduling_policy="vtc",
                )
        await abort(context, grpc.StatusCode.NOT_FOUND, "UNKNOWN_REQUEST", "no unfinished request is called that")
        raise AssertionError

    async def CancelRequests(self, request, context):  # noqa: N802
        self.cancelled.append(request)
        return pb.CancelRequestsResponse()

    async def UpdateNodes(self, request, context):  # noqa: N802
        self.num_updates += 1
        self.weights.update({tuple(node.path): (node.weight, node.revision) for node in request.nodes})
        return pb.UpdateNodesResponse()

    async def UpdateClasses(self, request, context):  # noqa: N802
        self.num_updates += 1
        self.classes = {named.name: named for named in request.classes}
        return pb.UpdateClassesResponse()

    async def SetSchedulingPolicy(self, request, context):  # noqa: N802
        if request.name != "fcfs":
            await abort(
                context, grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "name cannot be taken", field="name"
            )
        return pb.SetSchedulingPolicyResponse(
            previous_name="vtc", previous_preemption_name="never", previous_options={"output_cost": "3"}
        )
