"""How fast the engine is here, measured on a few seconds of the same kind of work that the demo sends."""

import asyncio
import random
import time

from gateway.cli.demo.sizes import BATCH, NUM_RESIDENT, Shape, Speed
from gateway.cli.demo.traffic import SEED, Clients, Experience
from gateway.cli.errors import CliError

WARM_UP = Shape(16, 4)
# One whole chunk on a CPU, and contexts of about the length that the demo's have.
PREFILL = Shape(256, 1)
DECODE = Shape(256, 24)


async def measure_speed(clients: Clients) -> Speed:
    """Seconds per prompt token, and per step that decodes as many requests as the pool will hold."""
    draw = random.Random(SEED)  # noqa: S311 - traffic, not secrets
    await _timed(clients, draw, WARM_UP, 1)
    prefill_s = await _timed(clients, draw, PREFILL, 1)
    decode_s = await _timed(clients, draw, DECODE, NUM_RESIDENT)
    per_token_s = prefill_s / PREFILL.num_prompt_tokens
    prompts_s = NUM_RESIDENT * DECODE.num_prompt_tokens * per_token_s
    return Speed(per_token_s, max(decode_s - prompts_s, 0.1 * decode_s) / DECODE.num_output_tokens)


async def _timed(clients: Clients, draw: random.Random, shape: Shape, num_requests: int) -> float:
    seen = Experience()
    prompts = [clients.prompt(draw, shape) for _ in range(num_requests)]
    began_s = time.monotonic()
    sending = (clients.send(BATCH, prompt, shape.num_output_tokens, seen, began_s) for prompt in prompts)
    await asyncio.gather(*sending)
    if seen.failures:
        raise CliError(f"the calibration was refused: {seen.failures[0]}")
    return time.monotonic() - began_s
