"""The scheduler's settings, resolved: no value here is optional or automatic."""

from dataclasses import dataclass

# Most tokens/s of 0, 16, 32, 48, 64 and 128, at block sizes 4, 16 and 128 and pools that held 10 to 45 of 64 rows: 600
# requests of 50-500 prompt and 50-600 output tokens. At 0, 44-65 % of them were preempted; at 32, 1-29 %.
GROWTH_RESERVE_TOKENS = 32


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the pool.

    max_num_seqs            rows of one step
    max_num_batched_tokens  tokens of one step
    block_size              tokens per KV block
    num_device_blocks       blocks of the device pool
    max_model_len           tokens that one sequence may hold (the model's context)
    enable_chunked_prefill  False computes each prompt whole, in one step
    max_prefill_share       largest part of a step's tokens that one prompt takes in its turn, in (0, 1]; what no other
                            request could use goes round again, so that a request that is alone gets all of them
    growth_reserve_tokens   output tokens for which each running sequence must have room before another is admitted;
                            with less than the default more work is lost to preemption, with more rows stay empty

    Raises ValueError, naming the setting, where a value is out of range or contradicts another.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_device_blocks: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    max_prefill_share: float = 1.0
    growth_reserve_tokens: int = GROWTH_RESERVE_TOKENS

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_device_blocks", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.growth_reserve_tokens < 0:
            raise ValueError(f"growth_reserve_tokens must be at least 0, not {self.growth_reserve_tokens}")
        if not 0 < self.max_prefill_share <= 1:
            raise ValueError(f"max_prefill_share must be in (0, 1], not {self.max_prefill_share}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs"
                f" ({self.max_num_seqs}): each running sequence takes a token of a step"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_request_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must hold the longest request"
                f" ({self.max_request_tokens} tokens) when enable_chunked_prefill is off"
            )
        if not self.enable_chunked_prefill and self.max_prefill_share < 1:
            raise ValueError("max_prefill_share needs enable_chunked_prefill")

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output tokens that one request can ever hold."""
        return min(self.max_model_len, self.num_device_blocks * self.block_size)
