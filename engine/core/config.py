"""The scheduler's settings, resolved: no value here is optional or automatic."""

import math
from dataclasses import dataclass
from enum import Enum

from engine.core.quick_enum import quick

# Of 0, 16, 32, 48, 64 and 128: up to 32 left most tokens/s at block sizes 4 to 128 in pools for 10 to 45 of 64 rows;
# with a burst of twice the pool beside an even stream, 48 preempted a tenth of what 32 did, at 1 % fewer tokens/s.
GROWTH_RESERVE_TOKENS = 48
DEFAULT_MIN_RESIDENT_STEPS = 8
DEFAULT_MAX_DRAFTING_SEQS = 32
MAX_DRAFT_TOKENS = 64  # at 98 % each, a fourth of such drafts are right
DEFAULT_MIN_DRAFT_ACCEPTANCE = 0.1
DEFAULT_CACHE_MIN_SHARE = 0.05  # a long system prompt and its tools, in a pool of some ten thousand tokens
DEFAULT_MAX_PREEMPTIONS = 4  # in healthy public runs no request was preempted more often (scheduler traces, 2026)


@quick
class AdmissionReserve(Enum):
    """Room that must be left for the output of running requests before another is admitted.

    GROWTH  `growth_reserve_tokens` for each
    PEAK    the most that all of them can come to hold together, if each runs to its limit and frees its blocks then
    WHOLE   each to its limit at once: nothing is ever preempted for want of blocks (no-evict)
    """

    GROWTH = "growth"
    PEAK = "peak"
    WHOLE = "whole"


@quick
class PreemptionChoice(Enum):
    """What is done with a victim's blocks. AUTO takes what costs less by the measured prices."""

    AUTO = "auto"
    SWAP = "swap"
    RECOMPUTE = "recompute"


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
    admission_reserve       whether that is all the room that is kept for them
    admission_interval      plans from one admission to the next while something runs and nothing has ended; 1 is each
    mix_prefill             False computes prompts and decodes in separate steps, prompts first
    num_host_blocks         blocks of the host pool; with 0 a victim's tokens are always computed again
    preemption_mode         swap or recompute
    partial_swap            a victim keeps the blocks that are not needed; False moves all of them
    min_resident_steps      steps for which a sequence that has come in is protected from heads without room
    max_preemptions         times after which a request that does not yield is no longer preempted for such heads
    link_share              largest part of the time in which a copy may be under way in one direction, in (0, 1]
    target_step_ms          longest step that prompts may make, by the cost model; 0 is no limit
    num_draft_tokens        most draft tokens that a sequence verifies in one step; 0 is no speculative decoding
    max_drafting_seqs       steps that compute more sequences than that carry no drafts
    min_draft_acceptance    no draft is verified that is right with a smaller probability, in [0, 1]
    draft_token_ns          what it takes to propose one draft token
    enable_prefix_caching   prompts of one salt that begin alike share blocks, and blocks without users are kept
    cache_min_share         part of the pool that a tenant's kept blocks may have before others' are evicted instead
    cache_max_share         part of the pool that a tenant's kept blocks have at most

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
    admission_reserve: AdmissionReserve = AdmissionReserve.GROWTH
    admission_interval: int = 1
    mix_prefill: bool = True
    num_host_blocks: int = 0
    preemption_mode: PreemptionChoice = PreemptionChoice.AUTO
    partial_swap: bool = True
    min_resident_steps: int = DEFAULT_MIN_RESIDENT_STEPS
    max_preemptions: int = DEFAULT_MAX_PREEMPTIONS
    link_share: float = 1.0
    target_step_ms: float = 0.0
    num_draft_tokens: int = 0
    max_drafting_seqs: int = DEFAULT_MAX_DRAFTING_SEQS
    min_draft_acceptance: float = DEFAULT_MIN_DRAFT_ACCEPTANCE
    draft_token_ns: float = 0.0
    enable_prefix_caching: bool = False
    cache_min_share: float = DEFAULT_CACHE_MIN_SHARE
    cache_max_share: float = 1.0

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_combinations()

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output tokens that one request can ever hold."""
        return min(self.max_model_len, self.num_device_blocks * self.block_size)

    def _check_ranges(self) -> None:
        self._check_counts()
        for name in ("max_prefill_share", "link_share"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in (0, 1], not {getattr(self, name)}")
        for name in ("cache_min_share", "cache_max_share", "min_draft_acceptance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")
        for name in ("target_step_ms", "draft_token_ns"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, not {getattr(self, name)}")

    def _check_counts(self) -> None:
        positive = ("max_num_seqs", "max_num_batched_tokens", "block_size", "num_device_blocks", "max_model_len")
        for name in (*positive, "admission_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        at_least_0 = ("growth_reserve_tokens", "num_host_blocks", "min_resident_steps", "max_preemptions")
        for name in (*at_least_0, "num_draft_tokens", "max_drafting_seqs"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.num_draft_tokens > MAX_DRAFT_TOKENS:
            raise ValueError(f"num_draft_tokens must be at most {MAX_DRAFT_TOKENS}, not {self.num_draft_tokens}")

    def _check_combinations(self) -> None:
        if self.preemption_mode is PreemptionChoice.SWAP and not self.num_host_blocks:
            raise ValueError("preemption_mode swap needs num_host_blocks")
        if self.cache_min_share > self.cache_max_share:
            raise ValueError(
                f"cache_min_share ({self.cache_min_share}) must be at most cache_max_share ({self.cache_max_share})"
            )
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
