"""How many output tokens a request may have, by what its prompt leaves of the context and of the pool. Pure."""

from gateway.engine_client import ModelInfo
from gateway.errors import FieldViolation
from gateway.errors_requests import ContextLengthError, ExceedsKvPoolError

DEFAULT_MAX_OUTPUT_TOKENS = 1024


def output_size(wanted: int | None, num_input_tokens: int, info: ModelInfo, num_beams: int = 1) -> int:
    """How many tokens each of `num_beams` outputs may have; `wanted` None: what is left, up to the default.

    Raises ContextLengthError or ExceedsKvPoolError where prompt and outputs can never be held.
    """
    room = min(info.context_tokens, info.max_request_tokens) - num_input_tokens
    room_in_beams = room if num_beams == 1 else min(room, _room_in_beams(num_beams, num_input_tokens, info))
    size = max(1, min(room_in_beams, DEFAULT_MAX_OUTPUT_TOKENS)) if wanted is None else wanted
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
    if size > max(1, room_in_beams):
        text = f"{num_beams} beams can hold {room_in_beams} output tokens each behind {num_input_tokens} input tokens"
        metadata = {**sizes, "max_beam_output_tokens": str(room_in_beams)}
        raise ExceedsKvPoolError(FieldViolation(field, text), metadata=metadata)
    return size


def _room_in_beams(num_beams: int, num_input_tokens: int, info: ModelInfo) -> int:
    """Output tokens of each beam: of the pool's blocks they have those in common that the prompt fills."""
    num_shared = num_input_tokens // info.block_size
    num_own = (info.num_device_blocks - num_shared) // num_beams
    return max(1, (num_shared + num_own) * info.block_size - num_input_tokens)
