"""`GET /v1/models`, as OpenAI has it, with the lengths that clients of other servers look for."""

from typing import Literal

from pydantic import BaseModel

from gateway.engine_client import ModelInfo

OWNER = "evenflow"


class Model(BaseModel):
    """`max_model_len` is the context in tokens, `max_request_tokens` what one request can ever hold of it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int
    max_request_tokens: int

    @classmethod
    def of(cls, info: ModelInfo, created_unix_s: int) -> "Model":
        return cls(
            id=info.name,
            created=created_unix_s,
            owned_by=OWNER,
            max_model_len=info.context_tokens,
            max_request_tokens=info.max_request_tokens,
        )


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]
