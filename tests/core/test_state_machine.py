"""Random requests, commands and steps in tiny pools: nothing is lost, doubled, leaked or stopped.

After every call all invariants hold, and the runner notices every block that is used before its copy has ended. In the
end every accepted request has ended exactly once, its tokens are those of a run that nothing disturbs, every block and
row is free, and what was charged is what was computed or emitted once.
"""

import pytest

from tests.core.machine import run_machine
from tests.core.traffic import SCHEDULING


@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_random_traffic_is_served_exactly_once(scheduling: str):
    run_machine(scheduling, max_examples=15, num_rules=40)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_much_random_traffic_is_served_exactly_once(scheduling: str):
    run_machine(scheduling, max_examples=120, num_rules=60)
