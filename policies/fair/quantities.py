"""What the rules of `fair` measure with: the cost of tokens, one step's worth δ, and the threshold Θ of a lead."""

from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, num_chunk_keys
from policies.fair.node import Node

MOVE_SHARE = 0.05  # of the service that a swap exchanges, what the swap itself may cost
MAX_THRESHOLD_STEPS = 8.0  # steps' worth; a dear link must not buy unfairness without end


@dataclass(slots=True)
class Quantities:
    """In cost units. `theta` 0 is automatic. Written by Fair at the start of each plan.

    key_cost   of each key that a prompt token attends to, beside the token's: what it adds to the time of a step. Were
               a deep token counted like the first, decodes would be ahead by count while they have less of the time
    step_cost  D, the largest cost that one plan can give one tenant
    move_cost  the service of which moving a step's worth of tokens out and in takes MOVE_SHARE
    """

    prefill_cost: float
    output_cost: float
    theta: float
    slack: float
    counts_keys: bool = False
    key_cost: float = 0.0
    step_cost: float = 0.0
    move_cost: float = 0.0
    has_changed: bool = False
    learned_from: tuple[SchedulerConfig, Prices] | None = None

    def cost(self, num_prefill_tokens: int, num_output_tokens: int, num_keys: int = 0) -> float:
        """Of tokens computed for the first time, with the keys that they attended to, and of tokens emitted."""
        cost = self.output_cost * num_output_tokens
        if not num_prefill_tokens:
            return cost
        return self.prefill_cost * num_prefill_tokens + cost + self.key_cost * num_keys

    def step_bound(self, node: Node) -> float:
        """δ of a node: what one step can add to its counter."""
        return self.step_cost / node.weight

    def threshold(self, parent: Node) -> float:
        """Θ of the children of `parent`, never below one step's worth of the lightest unless `theta` says so."""
        if self.theta:
            return max(self.theta, self.slack)
        return max(max(self.move_cost, self.step_cost) / parent.least_weight, self.slack)

    def learn(self, config: SchedulerConfig, prices: Prices) -> None:
        """The sizes of a step and the prices of this moment; `has_changed` if they are others than before."""
        last = self.learned_from
        if last is not None and last[0] is config and last[1] is prices:
            self.has_changed = False
            return
        self.learned_from = config, prices
        before = self.step_cost, self.move_cost
        step, num_tokens = prices.step, config.max_num_batched_tokens
        counts_keys = self.counts_keys and prices.are_measured and step.prefill_token_ns > 0
        self.key_cost = self.prefill_cost * step.prefill_key_ns / step.prefill_token_ns if counts_keys else 0.0
        # Paced chunks add no more to a step than the first one of a prompt, or a token of the deepest one.
        num_keys = num_chunk_keys(0, num_tokens) + config.max_model_len
        # Each draft that is accepted is emitted, and takes the place of a prompt's token in the step.
        num_drafts = min(num_tokens, config.max_num_seqs * config.num_draft_tokens)
        num_output = config.max_num_seqs + num_drafts
        without = self.cost(num_tokens, config.max_num_seqs, num_keys)
        self.step_cost = (
            max(without, self.cost(num_tokens - num_drafts, num_output, num_keys)) if num_drafts else without
        )
        num_blocks = num_tokens / config.block_size
        # A copy runs beside the steps, so what it costs is by how much it delays them, there and back.
        move_ns = 2 * num_blocks * step.copied_block_ns if config.num_host_blocks else 0.0
        unit_ns = step.prefill_token_ns / self.prefill_cost if self.prefill_cost else 0.0
        most = MAX_THRESHOLD_STEPS * self.step_cost
        self.move_cost = min(most, move_ns / MOVE_SHARE / unit_ns) if unit_ns and prices.are_measured else 0.0
        self.has_changed = (self.step_cost, self.move_cost) != before
