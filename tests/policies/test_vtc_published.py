"""The virtual token counter against the published algorithm, written down plainly. Source: Sheng et al. 2024."""

import itertools
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from engine.core.policy import LeaveReason
from engine.plugins import load_scheduling_policy
from engine.sim.conformance.views import PlainSequence
from tests.policies.views import NOW, make_view, output, standing


@dataclass
class Published:
    """As published: nothing is forgotten and every tenant looked at each time."""

    counters: dict[str, int] = field(default_factory=dict)
    queues: dict[str, deque[PlainSequence]] = field(default_factory=dict)
    last_left: str | None = None

    def waiting(self) -> list[str]:
        return [tenant for tenant, queue in self.queues.items() if queue]

    def arrive(self, tenant: str, seq: PlainSequence) -> None:
        self.counters.setdefault(tenant, 0)
        queue = self.queues.setdefault(tenant, deque())
        if not queue:
            others = [self.counters[other] for other in self.waiting()]
            if others:
                self.counters[tenant] = max(self.counters[tenant], min(others))
            elif self.last_left is not None:
                self.counters[tenant] = max(self.counters[tenant], self.counters[self.last_left])
        queue.append(seq)

    def select(self) -> tuple[str, PlainSequence] | None:
        def rank(tenant: str) -> tuple[int, int]:
            return (self.counters[tenant], self.queues[tenant][0].arrival_index)

        tenant = min(self.waiting(), key=rank, default=None)
        return None if tenant is None else (tenant, self.queues[tenant][0])

    def leave(self, tenant: str, seq: PlainSequence) -> None:
        self.queues[tenant].remove(seq)
        if not self.queues[tenant]:
            self.last_left = tenant


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from("abcd"), st.integers(1, 30)),
        st.tuples(st.just("admit"), st.just(""), st.just(0)),
        st.tuples(st.just("emit"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("finish"), st.just(""), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.sampled_from("abcd"), st.just(0)),
    ),
    max_size=120,
)


@given(OPERATIONS)
def test_it_selects_what_the_published_algorithm_selects(operations):
    policy, published = load_scheduling_policy("vtc", {}), Published()
    running: list[tuple[str, PlainSequence]] = []
    arrivals = itertools.count()
    for operation, tenant, number in operations:
        if operation == "arrive":
            seq = make_view(next(arrivals), tenant=tenant, prompt=number)
            policy.on_arrive(seq, NOW)
            published.arrive(tenant, seq)
        elif operation == "admit" and (choice := published.select()) is not None:
            policy.on_leave(choice[1], LeaveReason.ADMITTED, NOW)
            published.counters[choice[0]] += choice[1].num_prompt_tokens
            published.leave(*choice)
            running.append(choice)
        elif operation == "emit" and running:
            tenant = running[number % len(running)][0]
            policy.charge(output(tenant, 1))
            published.counters[tenant] += 2
        elif operation == "finish" and running:
            _, seq = running.pop(number % len(running))
            policy.on_leave(seq, LeaveReason.FINISHED, NOW)
        elif operation == "cancel" and published.queues.get(tenant):
            seq = published.queues[tenant][-1]
            policy.on_leave(seq, LeaveReason.FINISHED, NOW)
            published.leave(tenant, seq)

        choice = published.select()
        assert policy.select(()) is (None if choice is None else choice[1])
        for name in published.waiting():
            assert standing(policy, name) == published.counters[name]
