"""How much traffic: the long requests of one tenant, the short ones of the other, and the pool they compete for.

The full size: 24 prompts of 1,024 tokens with 256 tokens of output, flooding a pool of 8,192 tokens that holds six of
them, against a short request every second. Anything smaller is the same picture scaled down by one factor: prompts,
outputs and pool alike, so that memory stays what everyone waits for.
"""

import math
from dataclasses import dataclass

BATCH, CHAT = "batch", "chat"
BLOCK_SIZE = 16
MAX_NUM_SEQS = 16
NUM_LONG = 24
LONG_PROMPT_TOKENS = 1024
LONG_OUTPUT_TOKENS = 256
POOL_TOKENS = 8192
NUM_SHORT = 30
SHORT_PROMPT_TOKENS = 32
SHORT_OUTPUT_TOKENS = 16
SHORT_INTERVAL_S = 1.0
# Of one policy's run. Twice that, three starts of the engine and the calibration make two minutes.
TARGET_S = 40.0
# Steps that mix prompts with decodes are slower than the two measured apart, and preempted prompts are computed again.
OVERHEAD = 1.3
# Below this the long requests are no longer long against the short ones.
SMALLEST_FACTOR = 1 / 8
# Long requests that compute at a time: what the pool holds.
NUM_RESIDENT = POOL_TOKENS // (LONG_PROMPT_TOKENS + LONG_OUTPUT_TOKENS)


@dataclass(frozen=True, slots=True)
class Shape:
    """Tokens of one request."""

    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens


@dataclass(frozen=True, slots=True)
class Speed:
    """What the engine was measured to do here."""

    prefill_s_per_token: float
    decode_step_s: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """The traffic of one run, the same for each policy, and the engine's pool."""

    num_long: int
    long: Shape
    num_short: int
    short: Shape
    num_device_blocks: int

    @property
    def num_pool_tokens(self) -> int:
        return self.num_device_blocks * BLOCK_SIZE

    @property
    def engine_flags(self) -> tuple[str, ...]:
        flags = {
            "--num-device-blocks": self.num_device_blocks,
            "--block-size": BLOCK_SIZE,
            "--max-num-seqs": MAX_NUM_SEQS,
        }
        return tuple(text for flag, value in flags.items() for text in (flag, str(value)))


def full_sizes() -> Sizes:
    """The scenario as it is written."""
    return scaled_sizes(1.0, NUM_LONG)


def sizes_for(speed: Speed) -> Sizes:
    """The scenario at a scale that keeps this machine busy for about TARGET_S."""
    prefill_s = LONG_PROMPT_TOKENS * speed.prefill_s_per_token
    decode_s = LONG_OUTPUT_TOKENS * speed.decode_step_s / NUM_RESIDENT
    factor = TARGET_S / (OVERHEAD * NUM_LONG * (prefill_s + decode_s))
    if factor >= 1:  # a fast machine: more of the same
        return scaled_sizes(1.0, round(NUM_LONG * factor))
    return scaled_sizes(max(factor, SMALLEST_FACTOR), NUM_LONG)


def scaled_sizes(factor: float, num_long: int) -> Sizes:
    """Prompts, outputs and pool at `factor`, in whole blocks."""
    long = Shape(math.ceil(LONG_PROMPT_TOKENS * factor), math.ceil(LONG_OUTPUT_TOKENS * factor))
    short = Shape(SHORT_PROMPT_TOKENS, SHORT_OUTPUT_TOKENS)
    return Sizes(num_long, long, NUM_SHORT, short, math.ceil(POOL_TOKENS * factor / BLOCK_SIZE))
