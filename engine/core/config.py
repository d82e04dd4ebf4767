"""The scheduler's settings, resolved: no value here is optional or automatic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of a step and of the pool.

    max_num_seqs            rows of one step
    max_num_batched_tokens  tokens of one step
    block_size              tokens per KV block
    num_device_blocks       blocks of the device pool
    max_model_len           tokens that one sequence may hold (the model's context)
    enable_chunked_prefill  False computes each prompt whole, in one step
    max_prefill_share       largest part of a step's tokens that one prompt may take while another request wants
                            tokens, in (0, 1]; lifted for a request that is alone

    Raises ValueError, naming the setting, where a value is out of range or contradicts another.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_device_blocks: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    max_prefill_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_device_blocks", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.max_prefill_share <= 1:
            raise ValueError(f"max_prefill_share must be in (0, 1], not {self.max_prefill_share}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}):"
                " each running sequence takes a token of a step"
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
