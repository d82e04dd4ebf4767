"""The machine that counterexamples and random runs are played on: limits of a step, pools, delays, and options."""

from collections import abc
from dataclasses import dataclass, field

from tests.fairness.ledger import Key
from tests.fairness.observer import Bounds


@dataclass(frozen=True, slots=True)
class Machine:
    """Limits of a step and the pools, delays of copies in steps, and the options of the policy."""

    max_num_batched_tokens: int = 32
    max_num_seqs: int = 8
    block_size: int = 8
    num_device_blocks: int = 96
    num_host_blocks: int = 0
    copy_out_steps: int = 0
    copy_in_steps: int = 0
    min_resident_steps: int = 0
    threshold: float = 48.0
    is_strict: bool = True
    weights: abc.Mapping[Key, float] = field(default_factory=dict)
    output_cost: float = 2.0
    is_random: bool = False
    has_entry_rule: bool = True
    max_preemptions: int = 4
    partial_swap: bool = False

    @property
    def max_step_cost(self) -> float:
        return self.max_num_batched_tokens + self.output_cost * self.max_num_seqs

    def bounds(self) -> Bounds:
        return Bounds(
            weight=lambda key: self.weights.get(key, 1.0),
            threshold=lambda key: self.threshold,
            step_bound=lambda key: self.max_step_cost / self.weights.get(key, 1.0),
            max_step_cost=self.max_step_cost,
            min_resident_steps=self.min_resident_steps,
            is_strict=self.is_strict,
        )
