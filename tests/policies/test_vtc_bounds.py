"""The theorems of the VTC paper, on random traffic through the whole scheduler. Source: Sheng et al. 2024, §4.

Notation of the paper: c counters, W service, w_p and w_q costs of a prompt and an output token, L the longest prompt,
M the tokens that fit into a running batch, U = max(w_p L, w_q M). Weights divide costs, so U is over the smallest.
"""

import random
from dataclasses import dataclass, field

import pytest

from engine.core.events import Admitted, TokensEmitted
from engine.core.types import SequenceStatus
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ConstantRunner
from tests.policies.views import standing

W_P, W_Q = 1, 2
NUM_ROWS = 2
MAX_PROMPT, MAX_OUTPUT = 40, 24
MEAN_PHASE = 120  # steps
NUM_STEPS = 1_500


@dataclass
class Traffic:
    """Tenants that send now and then or all the time, step by step. Weights are powers of two, so sums are exact."""

    seed: int
    weights: dict[str, float]
    driver: Driver = field(init=False)
    service: dict[str, float] = field(init=False)
    awake: set[str] = field(init=False)
    num_running_tokens: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        limits = {"max_num_seqs": NUM_ROWS, "max_num_batched_tokens": 24, "num_device_blocks": 256}
        self.driver = Driver(make_scheduler("vtc", **limits), ConstantRunner())
        self.service = dict.fromkeys(self.weights, 0.0)
        self.awake = {next(iter(self.weights))}

    def arrive(self) -> None:
        """Tenants that are awake keep a backlog; each falls asleep and wakes up at times of its own."""
        waiting = self.waiting()
        for tenant, weight in self.weights.items():
            if self.random.random() < 1 / MEAN_PHASE:
                self.awake ^= {tenant}
            if tenant in self.awake and waiting.count(tenant) < self.random.randint(1, 4):
                prompt, num_output = self.random.randint(1, MAX_PROMPT), self.random.randint(1, MAX_OUTPUT)
                self.driver.add(make_request(tenant=tenant, weight=weight, prompt=prompt, max_output_tokens=num_output))

    def step(self) -> None:
        """Run one step and count each tenant's service when it is charged."""
        seqs = dict(self.driver.scheduler.lifecycle.by_generation)
        for event in self.driver.step():
            seq = seqs[event.key.generation_id]
            tenant = seq.tenant_id.rpartition("/")[2]
            if isinstance(event, Admitted):
                self.service[tenant] += W_P * seq.num_prompt_tokens / self.weights[tenant]
            elif isinstance(event, TokensEmitted):
                self.service[tenant] += W_Q * len(event.token_ids) / self.weights[tenant]
        running = self.driver.scheduler.lifecycle.running
        self.num_running_tokens = max(self.num_running_tokens, sum(seq.max_num_tokens for seq in running))

    def waiting(self) -> list[str]:
        """The tenant of each waiting request."""
        seqs = self.driver.scheduler.lifecycle.by_generation.values()
        return [seq.tenant_id.rpartition("/")[2] for seq in seqs if seq.status is SequenceStatus.WAITING]

    @property
    def bound(self) -> float:
        """U, with the largest batch that was seen for M: nothing was preempted, so it fitted."""
        assert self.driver.scheduler.stats().num_preemptions == 0
        return max(W_P * MAX_PROMPT, W_Q * self.num_running_tokens) / min(self.weights.values())


EQUAL = {"a": 1.0, "b": 1.0, "c": 1.0}
WEIGHTED = {"a": 1.0, "b": 2.0, "c": 0.5}


@pytest.mark.parametrize("weights", [EQUAL, WEIGHTED], ids=["equal", "weighted"])
@pytest.mark.parametrize("seed", range(6))
def test_counters_of_waiting_tenants_stay_within_u(seed: int, weights: dict[str, float]):
    traffic = Traffic(seed, weights)
    largest = 0.0
    for _ in range(NUM_STEPS):
        traffic.arrive()
        policy = traffic.driver.scheduler.lifecycle.policy
        counters = [standing(policy, tenant) for tenant in set(traffic.waiting())]
        largest = max(largest, max(counters, default=0) - min(counters, default=0))
        traffic.step()

    assert 0 < largest <= traffic.bound  # Lemma 4.3


@pytest.mark.parametrize("weights", [EQUAL, WEIGHTED], ids=["equal", "weighted"])
@pytest.mark.parametrize("seed", range(6))
def test_two_tenants_that_both_wait_are_served_alike_in_every_interval(seed: int, weights: dict[str, float]):
    traffic = Traffic(seed, weights)
    pairs = [(f, g) for f in weights for g in weights if f != g]
    gaps = dict.fromkeys(pairs, 0.0)  # of W_f - W_g, the largest over the intervals that end now
    largest = 0.0
    for _ in range(NUM_STEPS):
        traffic.arrive()
        before = set(traffic.waiting())
        served = dict(traffic.service)
        traffic.step()
        both = before & set(traffic.waiting())
        for f, g in pairs:
            gained = (traffic.service[f] - served[f]) - (traffic.service[g] - served[g])
            gaps[f, g] = max(0.0, gaps[f, g] + gained) if {f, g} <= both else 0.0
            largest = max(largest, gaps[f, g])

    assert 0 < largest <= 2 * traffic.bound  # Theorem 4.4


def test_shares_follow_the_weights():
    traffic = Traffic(0, WEIGHTED)
    for _ in range(1_500):
        for tenant, weight in WEIGHTED.items():
            if traffic.waiting().count(tenant) < 2:
                traffic.driver.add(make_request(tenant=tenant, weight=weight, prompt=16, max_output_tokens=16))
        traffic.step()

    shares = list(traffic.service.values())
    assert max(shares) - min(shares) <= 2 * traffic.bound
    assert min(shares) > 10 * traffic.bound  # the gap is small beside what was served
