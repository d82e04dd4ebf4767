"""What a step and a copy take, in nanoseconds: one linear model for pacing, for choosing swap or recompute, and for
the simulator. Pure arithmetic; the numbers are measured elsewhere and come in by `Scheduler.calibrate`.
"""

from dataclasses import dataclass

# What service counts by default: w_p and w_q of the evaluation of VTC (Sheng et al. 2024, OSDI, §5).
PREFILL_COST = 1.0
OUTPUT_COST = 2.0


def num_chunk_keys(start: int, num_tokens: int) -> int:
    """Keys that the tokens [start, start + num_tokens) of a sequence attend to, each its own included."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Coefficients of a step's time, all >= 0.

    base_ns           of a step, whatever it holds
    prefill_token_ns  of each prompt (or recomputed) token
    prefill_key_ns    of each key that such a token attends to
    decode_ns         of each decoding sequence
    decode_key_ns     of each key that such a sequence attends to (its context)
    copied_block_ns   by which a block that is copied meanwhile delays the step
    """

    base_ns: float = 0.0
    prefill_token_ns: float = 1_000_000.0
    prefill_key_ns: float = 0.0
    decode_ns: float = 1_000_000.0
    decode_key_ns: float = 0.0
    copied_block_ns: float = 0.0

    def chunk_ns(self, start: int, num_tokens: int) -> float:
        """By how much a chunk of tokens [start, start + num_tokens) lengthens a step."""
        return num_tokens * self.prefill_token_ns + num_chunk_keys(start, num_tokens) * self.prefill_key_ns

    def decodes_ns(self, num_decodes: int, num_context_tokens: int) -> float:
        """By how much decodes that read `num_context_tokens` keys together lengthen a step."""
        return num_decodes * self.decode_ns + num_context_tokens * self.decode_key_ns


@dataclass(frozen=True, slots=True)
class Prices:
    """What preemption can cost. Copies overlap with steps; `copy_launch_ns` is paid once per copy.

    Until they are measured the defaults stand in; nothing is refused on their account.
    """

    step: StepCosts = StepCosts()
    copy_out_block_ns: float = 100_000.0
    copy_in_block_ns: float = 100_000.0
    copy_launch_ns: float = 0.0
    are_measured: bool = False
