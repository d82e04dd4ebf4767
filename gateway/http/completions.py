"""`POST /v1/completions`: the older body, with prompts as text or as token ids."""

from collections import abc
from typing import Annotated, ClassVar

from pydantic import Field

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import OFF, Neutral
from gateway.http.generation_ask import MAX_CHOICES, CompletionAsk, Options, base_spec, labels_of
from gateway.http.param_names import renaming
from gateway.http.structure import LogitBias, set_bias
from gateway.servicer.validation import MAX_LOGPROBS

MAX_PROMPT_TOKENS = 2**20

# The first element decides which kind of list it is; of millions that do not fit, none but the first is looked at.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**32)]], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
Texts = Annotated[
    list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
Prompts = Annotated[
    Annotated[str, Field(min_length=1)] | Texts | TokenIds | TokenLists, Field(union_mode="left_to_right")
]

completion_params = renaming(
    {
        "prompt": "prompt",
        "text": "prompt",
        "token_ids": "prompt",
        "token_ids.ids": "prompt",
        "output.prompt_logprobs": "echo",
        "stopping.max_output_tokens": "max_tokens",
    }
)


class CompletionRequest(CompletionAsk):
    """Several prompts and several choices of each are counted together, and are answered prompt by prompt."""

    NEUTRAL: ClassVar[Neutral] = {
        "best_of": (None, 1),
        "suffix": (None, ""),
        "prompt_cache_key": OFF,
        "store": (None, False),
    }

    prompt: Prompts
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    logit_bias: LogitBias | None = None

    @property
    def echoed(self) -> list[str | list[int]] | None:
        """Each choice's prompt, to be told before its output; None: it is not."""
        return [prompt for prompt in _prompts(self.prompt) for _ in range(self.n or 1)] if self.echo else None

    def specs(self) -> abc.Sequence[pb.GenerationSpec]:
        """Those of each prompt, one after the other. Raises InvalidFieldError."""
        number = self.n or 1
        prompts = _prompts(self.prompt)
        if number * len(prompts) > MAX_CHOICES:
            raise InvalidFieldError(FieldViolation("n", f"must be such that there are at most {MAX_CHOICES} choices"))
        base = base_spec(self, Options(self.max_tokens, self.logprobs, labels_of(self)))
        set_bias(base, self.logit_bias)
        if self.echo and self.logprobs is not None:
            base.output.prompt_logprobs = self.logprobs
        return [spec for prompt in prompts for spec in self.choices(_with_prompt(base, prompt))]


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(given, str):
        return [given]
    texts: list[str | list[int]] = []
    token_ids: list[int] = []
    for each in given:
        if isinstance(each, int):
            token_ids.append(each)
        else:
            texts.append(each)
    return [token_ids] if token_ids else texts


def _with_prompt(base: pb.GenerationSpec, prompt: str | list[int]) -> pb.GenerationSpec:
    spec = pb.GenerationSpec()
    spec.CopyFrom(base)
    if isinstance(prompt, str):
        spec.text = prompt
    else:
        spec.token_ids.ids.extend(prompt)
    return spec
