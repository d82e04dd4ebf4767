"""The four ways in (gRPC and HTTP, whole and streamed), each with a tenant of its own, and what each one tells."""

import json
from collections import abc
from dataclasses import dataclass, field

import grpc
import httpx2
from google.protobuf.json_format import MessageToDict

from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.fake_engine import MODEL
from tests.gateway.http.clients import Clients
from tests.gateway.refusals import refusal_of
from tests.gateway.world import Tenant, World

Told = dict[str, object]
RATELIMIT = "x-ratelimit-"


@dataclass(frozen=True)
class Asked:
    """One request in the words of both doors: `spec` over gRPC, `body` at `path`, and `headers` at both."""

    spec: Told
    body: Told
    path: str = "/v1/chat/completions"
    headers: abc.Mapping[str, str] = field(default_factory=dict)


@dataclass
class Answer:
    """What a caller learns. `reason` is empty where it was not refused; `limits` is what was left of them."""

    text: str = ""
    finish: str = ""
    usage: tuple[int, int, int] = (0, 0, 0)
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    limits: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    violations: list[tuple[str, str]] = field(default_factory=list)
    is_worth_a_retry: bool = False


async def over_grpc(tenant: Tenant, asked: Asked, *, is_stream: bool) -> Answer:
    call = (tenant.stream if is_stream else tenant.generate)(metadata=tuple(asked.headers.items()), **asked.spec)
    answer = Answer()
    try:
        if is_stream:
            await _read_stream(call, answer)
        else:
            _read_whole(await call, answer)
        answer.limits = _limits(await call.initial_metadata())
    except grpc.aio.AioRpcError as error:
        refusal = refusal_of(error)
        answer.limits = _limits(refusal.trailers.items()) or _limits(await call.initial_metadata())
        answer.reason, answer.metadata = refusal.info.reason, dict(refusal.info.metadata)
        violations = refusal.quota.violations if refusal.quota else ()
        answer.violations = [(each.subject, each.quota_metric) for each in violations]
        answer.is_worth_a_retry = refusal.retry is not None
    return answer


def _read_whole(response: pb.GenerateResponse, answer: Answer) -> None:
    (output,) = response.outputs
    answer.text, answer.logprobs = output.text, [(each.token, each.logprob) for each in output.logprobs]
    _read_end(output.finish_reason, response.usage, answer)


async def _read_stream(call: abc.AsyncIterable[pb.StreamGenerateResponse], answer: Answer) -> None:
    async for message in call:
        answer.text += message.token_delta.text
        answer.logprobs += [(each.token, each.logprob) for each in message.token_delta.logprobs]
        if message.HasField("finish"):
            _read_end(message.finish.finish_reason, message.finish.usage, answer)


def _read_end(reason: pb.FinishReason.ValueType, usage: pb.Usage, answer: Answer) -> None:
    answer.finish = pb.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()
    answer.usage = usage.input_tokens, usage.cached_input_tokens, usage.output_tokens


async def over_http(http: httpx2.AsyncClient, asked: Asked, *, is_stream: bool) -> Answer:
    streamed = {"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}
    if is_stream and asked.path == "/v1/responses":
        streamed = {"stream": True}
    body = {"model": MODEL, **asked.body, **streamed}
    response = await http.post(asked.path, json=body, headers=dict(asked.headers))
    answer = Answer(limits=_limits(response.headers.items()))
    if response.status_code != 200:
        _read_error(response.json()["error"], answer)
        answer.is_worth_a_retry = "retry-after-ms" in response.headers
    elif asked.path == "/v1/responses":
        _read_response(_last_response(response.text) if is_stream else response.json(), answer)
    else:
        for message in _events(response.text) if is_stream else [response.json()]:
            _read_message(message, answer)
    return answer


def _events(text: str) -> list[Told]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def _last_response(text: str) -> Told:
    return _events(text)[-1]["response"]


def _read_message(message: Told, answer: Answer) -> None:
    """A whole answer, one piece of one, or an error event."""
    if "error" in message:
        _read_error(message["error"], answer)
        return
    for choice in message["choices"]:
        said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        answer.text += said.get("content") or ""
        answer.finish = choice["finish_reason"] or answer.finish
        told = choice.get("logprobs") or {}
        answer.logprobs += [(entry["token"], entry["logprob"]) for entry in told.get("content", ())]
        answer.logprobs += zip(told.get("tokens", ()), told.get("token_logprobs", ()), strict=True)
    if usage := message.get("usage"):
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        answer.usage = usage["prompt_tokens"], cached, usage["completion_tokens"]


def _read_response(response: Told, answer: Answer) -> None:
    (part,) = response["output"][0]["content"]
    answer.text = part["text"]
    answer.logprobs = [(entry["token"], entry["logprob"]) for entry in part["logprobs"]]
    answer.finish = "stop" if response["status"] == "completed" else "length"
    usage = response["usage"]
    answer.usage = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def _read_error(error: Told, answer: Answer) -> None:
    answer.reason, answer.metadata = error["reason"], error["metadata"]
    answer.violations = [(each["subject"], each["dimension"]) for each in error["violations"]]


def _limits(entries: abc.Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {name: str(value) for name, value in entries if name.startswith(RATELIMIT) and "reset" not in name}


async def quota_left(tenant: Tenant) -> list[tuple[str, str, str]]:
    """What is left of each of the tenant's limits, when nothing of it runs."""
    status = MessageToDict(await tenant.quota_status(), always_print_fields_with_no_presence=True)
    return [(each["dimension"], each["limit"], each["remaining"]) for each in status["limits"]]


async def every_way(
    world: World, tenants: abc.Mapping[str, Tenant], clients: Clients, asked: Asked
) -> dict[str, Answer]:
    """The answers to `asked` by the way, one after the other, each from an engine that is there."""
    answers = {}
    for name, tenant in tenants.items():
        await world.serving()
        is_stream = name.endswith("stream")
        if name.startswith("grpc"):
            answers[name] = await over_grpc(tenant, asked, is_stream=is_stream)
        else:
            answers[name] = await over_http(clients.http(tenant), asked, is_stream=is_stream)
    return answers
