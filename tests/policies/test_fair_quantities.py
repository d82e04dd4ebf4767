"""What `fair` measures with: nothing that one plan gives a tenant costs more than a step's worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.costs import Prices, StepCosts
from engine.core.pacing import Pacing
from engine.core.policy import Terms
from engine.core.step import Step
from engine.core.types import Nanos
from policies.fair.quantities import Quantities
from tests.builders import make_config, make_sequence

CONTEXT = 8_192


@given(
    budget=st.integers(1, 512),
    key_ns=st.sampled_from([0.0, 0.05, 1.0, 40.0]),
    starts=st.lists(st.one_of(st.just(0), st.integers(0, CONTEXT - 64)), min_size=1, max_size=6),
)
def test_the_paced_chunks_of_a_step_cost_a_steps_worth_at_most(budget: int, key_ns: float, starts: list[int]):
    prices = Prices(StepCosts(prefill_token_ns=1_000.0, prefill_key_ns=key_ns), are_measured=True)
    config = make_config(max_num_seqs=1, max_num_batched_tokens=budget, max_model_len=CONTEXT, num_device_blocks=4_096)
    quantities = Quantities(prefill_cost=1.0, output_cost=0.0, theta=0.0, slack=0.0, counts_keys=True)
    quantities.learn(config, prices)
    pacing, left, cost = Pacing(config, prices), budget, 0.0
    pacing.begin(Step(Nanos(0), budget, Terms(paces_prefill=True), num_flows=2))
    for start in starts:
        seq = make_sequence()
        seq.num_computed_tokens, seq.num_tokens = start, start + 64
        if not start and pacing.can_make_way(seq):
            pacing.make_way(seq)
        num_tokens = pacing.limit(seq, min(left, 64))
        pacing.spend(seq, start, num_tokens)
        cost += quantities.cost(num_tokens, 0, num_tokens * start + num_tokens * (num_tokens + 1) // 2)
        left -= num_tokens

    assert 0 < cost <= quantities.step_cost


@pytest.mark.parametrize("prefill_token_ns", [0.0, 1_000.0])
def test_a_prompt_token_that_takes_no_time_has_no_price_to_compare_with(prefill_token_ns: float):
    prices = Prices(StepCosts(prefill_token_ns=prefill_token_ns, prefill_key_ns=10.0), are_measured=True)
    quantities = Quantities(prefill_cost=1.0, output_cost=2.0, theta=0.0, slack=0.0, counts_keys=True)
    quantities.learn(make_config(), prices)

    assert quantities.cost(3, 1, 200) == 3 + 2 + (2 if prefill_token_ns else 0)
