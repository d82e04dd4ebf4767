"""The door's own description, made of the types that bodies are parsed into and answers are made of (OpenAPI 3.1)."""

from collections import abc
from dataclasses import dataclass
from importlib import metadata

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue, models_json_schema

from gateway.http import routes
from gateway.http.asks import Ask
from gateway.http.chat import ChatCompletionRequest
from gateway.http.chat_reply import ChatCompletion
from gateway.http.completions import CompletionRequest
from gateway.http.completions_reply import Completion
from gateway.http.model_list import Model, ModelList
from gateway.http.refusals import ErrorBody
from gateway.http.responses import ResponseRequest
from gateway.http.responses_reply import ResponseObject
from gateway.http.routes import HttpRoute
from gateway.http.tokenize import Tokenized, TokenizeRequest

TITLE = "Evenflow"
REFUSALS = {
    "400": "A parameter, which `param` names; or a request that no waiting helps",
    "401": "The credential",
    "403": "What the credential may not do",
    "404": "A model that is not there, or not for this key",
    "408": "A body that arrives too slowly",
    "409": "An idempotency key that stands for another request, or for one whose output is not kept",
    "413": "A body that is too large",
    "415": "A body that is no JSON",
    "429": "A limit, a spent budget, or a wait that was long enough; `retry-after` where waiting helps",
    "500": "A fault of this gateway",
    "503": "A part that is away for now",
    "504": "Time that ran out",
}


@dataclass(frozen=True, slots=True)
class Described:
    """`body` None: the path takes none. `streams`: the answer can be server-sent events."""

    summary: str
    body: type[Ask] | None
    reply: type[BaseModel]
    streams: bool = False


_DESCRIBED = {
    routes.CHAT_COMPLETIONS: Described("Answer a chat", ChatCompletionRequest, ChatCompletion, streams=True),
    routes.COMPLETIONS: Described("Go on with a text", CompletionRequest, Completion, streams=True),
    routes.RESPONSES: Described("Answer an input", ResponseRequest, ResponseObject, streams=True),
    routes.TOKENIZE: Described("Count what a prompt would be billed for", TokenizeRequest, Tokenized),
    routes.LIST_MODELS: Described("The models of this key", None, ModelList),
    routes.GET_MODEL: Described("One model of this key", None, Model),
}


def document() -> dict[str, object]:
    """The whole description."""
    kinds: list[tuple[type[BaseModel], JsonSchemaMode]] = [(ErrorBody, "serialization")]
    for described in _DESCRIBED.values():
        kinds.append((described.reply, "serialization"))
        if described.body is not None:
            kinds.append((described.body, "validation"))
    refs, definitions = models_json_schema(kinds, ref_template="#/components/schemas/{model}")

    def ref(kind: type[BaseModel], mode: JsonSchemaMode) -> JsonSchemaValue:
        return refs[kind, mode]

    paths: dict[str, dict[str, object]] = {}
    for route, described in _DESCRIBED.items():
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.verb.lower()] = _operation(route, described, ref)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": metadata.version("evenflow")},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


Ref = abc.Callable[[type[BaseModel], JsonSchemaMode], JsonSchemaValue]


def _operation(route: HttpRoute, described: Described, ref: Ref) -> dict[str, object]:
    content: dict[str, object] = {"application/json": {"schema": ref(described.reply, "serialization")}}
    if described.streams:
        # Of each event, as this version has it.
        event = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
        content["text/event-stream"] = {"schema": event}
    refusal = {"application/json": {"schema": ref(ErrorBody, "serialization")}}
    operation: dict[str, object] = {
        "operationId": f"{route.verb.lower()}_{route.path.strip('/').partition('/{')[0].replace('/', '_')}",
        "summary": described.summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{status: {"description": text, "content": refusal} for status, text in REFUSALS.items()},
        },
    }
    if described.body is not None:
        schema = ref(described.body, "validation")
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if "{model" in route.path:
        operation["operationId"] = "get_v1_model"
        operation["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation
