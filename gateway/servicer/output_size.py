"""How many output tokens a request may have, by what its prompt leaves of the context and of the pool. Pure."""

from gateway.engine_client import ModelInfo
from gateway.errors import FieldViolation
from gateway.errors_requests import ContextLengthError, ExceedsKvPoolError

DEFAULT_MAX_OUTPUT_TOKENS = 1024


def output_size(wanted: int | None, num_input_tokens: int, info: ModelInfo) -> int:
    """How many output tokens the request may have; `wanted` None: what is left, up to the default.

    Raises ContextLengthError or ExceedsKvPoolError where prompt and output can never be held.
    """
    room = min(info.context_tokens, info.max_request_tokens) - num_input_tokens
    size = max(1, min(room, DEFAULT_MAX_OUTPUT_TOKENS)) if wanted is None else wanted
    total = num_input_tokens + size
    field = "spec.prompt" if wanted is None or room < 1 else "spec.stopping.max_output_tokens"
    text = f"{num_input_tokens} input tokens and {size} output tokens are more than"
    sizes = {"input_tokens": str(num_input_tokens), "max_output_tokens": str(size)}
    if total > info.context_tokens:
        violation = FieldViolation(field, f"{text} the model's context of {info.context_tokens}")
        raise ContextLengthError(violation, metadata={**sizes, "context_tokens": str(info.context_tokens)})
    if total > info.max_request_tokens:
        violation = FieldViolation(field, f"{text} the {info.max_request_tokens} that one request can ever hold")
        raise ExceedsKvPoolError(violation, metadata={**sizes, "max_request_tokens": str(info.max_request_tokens)})
    return size
