"""The endpoints: a body, what it stands for, and how the answer is worded. One method per path."""

from collections import abc
from dataclasses import dataclass

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.auth import current_principal
from gateway.http.asks import parsed
from gateway.http.call import HttpCall
from gateway.http.called_tools import OfferedTools
from gateway.http.chat import ChatCompletionRequest
from gateway.http.chat_reply import ChatWording
from gateway.http.completions import CompletionRequest
from gateway.http.completions_reply import CompletionWording
from gateway.http.generating import Generating
from gateway.http.generation_ask import CompletionAsk, addressed
from gateway.http.model_list import Model, ModelList
from gateway.http.reply_parts import Head
from gateway.http.responses import ResponseRequest
from gateway.http.responses_reply import ResponseWording
from gateway.http.tokenize import TokenizeRequest, tokenized
from gateway.servicer.attachment import Served
from gateway.servicer.launch import Launcher
from gateway.servicer.prompt import encode


@dataclass(frozen=True, slots=True)
class Endpoints:
    """`started_unix_s`: when this gateway came up, which is all that it knows of a model's age."""

    launcher: Launcher
    generating: Generating
    max_body_bytes: int
    started_unix_s: int

    async def chat_completions(self, call: HttpCall) -> None:
        ask = parsed(ChatCompletionRequest, await call.body(self.max_body_bytes))
        specs = _addressed(ask.specs(), call, ask)
        await self.generating.answer(
            call,
            specs,
            lambda choices: ChatWording(
                Head.of(choices),
                has_logprobs=bool(ask.logprobs),
                includes_usage=ask.includes_usage,
                tools=_offered(ask, choices),
            ),
            is_stream=bool(ask.stream),
        )

    async def completions(self, call: HttpCall) -> None:
        ask = parsed(CompletionRequest, await call.body(self.max_body_bytes))
        specs = _addressed(ask.specs(), call, ask)
        await self.generating.answer(
            call,
            specs,
            lambda choices: CompletionWording(
                Head.of(choices),
                has_logprobs=ask.logprobs is not None,
                includes_usage=ask.includes_usage,
                echoed=ask.echoed,
            ),
            is_stream=bool(ask.stream),
        )

    async def responses(self, call: HttpCall) -> None:
        ask = parsed(ResponseRequest, await call.body(self.max_body_bytes))
        specs = (ask.spec(),)
        addressed(specs, call)
        await self.generating.answer(
            call,
            specs,
            lambda choices: ResponseWording(Head.of(choices), ask, _offered(ask, choices)),
            is_stream=bool(ask.stream),
        )

    async def tokenize(self, call: HttpCall) -> None:
        ask = parsed(TokenizeRequest, await call.body(self.max_body_bytes))
        model = self.launcher.models.resolve(ask.model, current_principal().model_grants, "model")
        token_ids = await encode(ask.to_prompt(), model, "")
        await call.respond(200, tokenized(token_ids, model, ask).model_dump_json().encode())

    async def list_models(self, call: HttpCall) -> None:
        granted = self.launcher.models.granted(current_principal().model_grants)
        body = ModelList(data=[Model.of(info, self.started_unix_s) for info in granted])
        await call.respond(200, body.model_dump_json().encode())

    async def get_model(self, call: HttpCall) -> None:
        name = str(call.scope["path_params"]["model"])
        model = self.launcher.models.resolve(name, current_principal().model_grants, "model")
        await call.respond(200, Model.of(model.info, self.started_unix_s).model_dump_json().encode())


def _offered(ask: ChatCompletionRequest | ResponseRequest, choices: abc.Sequence[Served]) -> OfferedTools | None:
    """What the answer may call, in the style of the model; None: nothing."""
    if not ask.offered:
        return None
    return OfferedTools(choices[0].transcript.tokenizer.tool_style, ask.offered, ask.is_single_call)


def _addressed(
    specs: abc.Sequence[pb.GenerationSpec], call: HttpCall, ask: CompletionAsk
) -> abc.Sequence[pb.GenerationSpec]:
    addressed(specs, call, ask.seed)
    return specs
