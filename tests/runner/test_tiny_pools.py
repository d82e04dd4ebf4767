"""Grammars beside a draft model where blocks are so few that hardly anybody stays: nothing that is said changes."""

import random

import pytest

from tests.runner.test_draft_cache import Checked
from tests.runner.test_guided_drafts import FIELDS, alone, guided_request, held, smaller_model  # noqa: F401  fixtures
from tests.runner.test_lost_steps import Losing
from tests.runner.test_scheduled_swap import MODES

LARGEST = 23  # blocks of the longest request


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 24))])
def test_guided_outputs_beside_a_draft_model_are_the_same_in_a_tiny_pool(
    held,  # noqa: F811  the fixture
    smaller_model,  # noqa: F811  the fixture
    seed,
):
    """Preempted, cancelled, and now and then without memory for a step; and no draft is drawn from a wrong context."""
    rng = random.Random(seed)
    requests = [guided_request(held, 3000 + 100 * seed + index) for index in range(8)]
    expected = alone(held, requests)
    fields = FIELDS | rng.choice(list(MODES.values())) | {"num_draft_tokens": rng.choice([1, 3, 8])}
    fields |= {"num_device_blocks": rng.choice([LARGEST, LARGEST + 1, LARGEST + 6])}
    fields |= {"max_num_batched_tokens": rng.choice([6, 12, 40]), "enable_prefix_caching": rng.random() < 0.5}
    served = Losing(held.model, rng.choice([1, 3, 1000]), rng, **fields)
    runner = served.runner
    draft = runner._proposer = Checked(smaller_model, served.scheduler.config, runner._rows, runner._masks)
    for request in requests:
        served.add(request)
    victims = rng.sample([request.generation_id for request in requests], 2)
    while served.scheduler.has_unfinished:
        if victims and rng.random() < 0.05 and victims[-1] in served.scheduler.lifecycle.by_generation:
            served.abort(victims.pop())
        if served.scheduler.has_unfinished:
            served.step()
    outputs = served.run()
    assert {name: expected.outputs[name] for name in outputs} == outputs
    assert all(served.ends[name] == expected.ends[name] for name in outputs)
    assert served.stats.num_preemptions > 0
    assert draft.num_checked > 0
