"""Which requests can never be held, however empty the engine is."""

from engine.core.config import SchedulerConfig
from engine.core.errors import RequestTooLargeError
from engine.core.types import Request


def check_size(request: Request, config: SchedulerConfig) -> None:
    """Raises RequestTooLargeError unless prompt and output fit the context and the pool; of a search, those of each
    beam the context, and those of all of them, with the full blocks of the prompt once, the pool."""
    num_tokens = len(request.prompt_token_ids) + request.max_output_tokens
    if num_tokens > config.max_request_tokens:
        raise RequestTooLargeError(num_tokens, config.max_request_tokens)
    if request.beam_search is None or request.max_output_tokens == 1:  # one token is the end of the first round
        return
    num_shared = len(request.prompt_token_ids) // config.block_size
    num_own = -(-num_tokens // config.block_size) - num_shared
    num_blocks = num_shared + request.beam_search.width * num_own
    if num_blocks > config.num_device_blocks:
        size, width = config.block_size, request.beam_search.width
        raise RequestTooLargeError(num_blocks * size, config.num_device_blocks * size, width)
