"""Any order of requests, turns, lost messages, crashes and clock steps keeps to the bound of one bucket."""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.leases.book import LeaseBook
from gateway.leases.demand import Demand
from gateway.leases.terms import LEASE_NS
from gateway.quota_terms import Reserved
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import TIMEOUT_NS, Message, Replica, World, tokens

indices = st.integers(0, 3)


class Leases(RuleBasedStateMachine):
    """One limit, up to four replicas. Messages are taken, answered and lost as the rules choose."""

    is_strict = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.num_crashes = 0
        self.gained_ns = 0
        self.late: list[tuple[Replica, Message]] = []
        self.books: list[LeaseBook] = []

    @initialize(
        limit=st.sampled_from((10, 100, 7)), burst=st.sampled_from((20, 60, 400)), period_s=st.sampled_from((1, 3))
    )
    def begin(self, limit: int, burst: int, period_s: int) -> None:
        self.limit = tokens(limit, burst, period_s, strict=self.is_strict)
        for _ in range(2):
            self.join()

    def replica(self, index: int) -> Replica:
        return self.world.replicas[index % len(self.world.replicas)]

    @rule(index=indices, amount=st.integers(1, 60))
    def reserve(self, index: int, amount: int) -> None:
        self.world.reserve(self.replica(index), (self.limit,), amount)

    @rule()
    def spend_all_there_is(self) -> None:
        """What is held here and there, and then what the shared side has left."""
        for replica in self.world.replicas:
            num_waiting = len(self.world.waiting)
            while len(self.world.waiting) == num_waiting:
                name = self.world.reserve(replica, (self.limit,), 1)
                if not isinstance(self.world.results.get(name), Reserved):
                    break
        for index in range(len(self.world.replicas)):
            for amount in (100, 50, 20, 10, 5, 2, 1):
                self.reserve(index, amount)
                self.turn(index)

    @precondition(lambda self: self.world.reserved)
    @rule(position=st.integers(0, 50), used=st.integers(0, 60))
    def settle(self, position: int, used: int) -> None:
        name = sorted(self.world.reserved)[position % len(self.world.reserved)]
        self.world.settle(name, min(used, self.world.reserved[name][1]))

    @rule(index=indices)
    def send(self, index: int) -> None:
        replica = self.replica(index)
        if replica.message is None:
            self.world.send(replica)

    @rule(index=indices)
    def take(self, index: int) -> None:
        replica = self.replica(index)
        if replica.message is not None and replica.message.answer is None:
            self.world.take(replica)

    @rule(index=indices)
    def receive(self, index: int) -> None:
        replica = self.replica(index)
        if replica.message is not None and replica.message.answer is not None:
            self.world.receive(replica)

    @rule(index=indices)
    def turn(self, index: int) -> None:
        self.receive(index)
        self.send(index)
        self.take(index)
        self.receive(index)

    @rule(index=indices)
    def turn_without_an_answer(self, index: int) -> None:
        self.turn(index)
        self.send(index)
        self.take(index)
        self.lose(index)

    @rule(index=indices)
    def lose(self, index: int) -> None:
        if (message := self.replica(index).message) is not None:
            if message.answer is None:
                self.late.append((self.replica(index), message))
            self.world.lose(self.replica(index))

    @precondition(lambda self: self.late)
    @rule()
    def take_late(self) -> None:
        """A statement that waited for a lock while its replica gave it up."""
        self.world.take_message(*self.late.pop())

    @precondition(lambda self: len(self.world.replicas) > 1 and self.num_crashes < 5)
    @rule(index=indices)
    def crash(self, index: int) -> None:
        self.world.crash(self.replica(index))
        self.num_crashes += 1

    @precondition(lambda self: len(self.world.replicas) < 4)
    @rule()
    def join(self) -> None:
        self.books.append(self.world.add_replica().book)

    @rule(step_ns=st.integers(-5 * NS_PER_S, 5 * NS_PER_S))
    def step_the_databases_clock(self, step_ns: int) -> None:
        self.world.database_offset_ns += step_ns
        self.gained_ns += max(0, step_ns)

    @rule(
        duration_ns=st.sampled_from((1, NS_PER_S // 20, NS_PER_S // 2, NS_PER_S - 1, 3 * NS_PER_S // 2, 3 * NS_PER_S))
    )
    def wait(self, duration_ns: int) -> None:
        for replica in self.world.replicas:
            message = replica.message
            if message is not None and self.world.now_ns + duration_ns - message.sent_ns >= TIMEOUT_NS:
                self.lose(self.world.replicas.index(replica))
        self.world.now_ns += duration_ns

    @rule(num_rounds=st.sampled_from((1, 5, 40)), amount=st.integers(0, 5))
    def keep_leases_alive(self, num_rounds: int, amount: int) -> None:
        """A little use everywhere or none, each turn in time."""
        for _ in range(num_rounds):
            for index in range(len(self.world.replicas)):
                if amount:
                    self.reserve(index, amount)
                self.turn(index)
            self.world.now_ns += NS_PER_S // 2

    @invariant()
    def what_is_admitted_is_within_the_bound(self) -> None:
        if not self.world.charges:
            return
        ahead_ns = self.gained_ns if self.is_strict else LEASE_NS + self.gained_ns
        overdrawn = sum(book.counters.overdrawn for book in self.books)
        allowed = Fraction(ahead_ns * self.limit.limit, self.limit.period_ns) + overdrawn
        assert self.world.overshoot(self.limit) <= allowed


class HoardedLeases(Leases):
    """The bound does not rest on leases being small: here everybody keeps all that the store gives."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(Demand, "per_lease", lambda *_: 10**6)

    def teardown(self) -> None:
        self.patch.undo()


class StrictLimits(Leases):
    is_strict = True


def test_what_nobody_spent_while_all_were_silent_is_nobodys_credit() -> None:
    hoarded = HoardedLeases()
    try:
        hoarded.begin(limit=10, burst=60, period_s=3)
        hoarded.join()
        hoarded.join()
        hoarded.send(index=0)
        hoarded.keep_leases_alive(num_rounds=1, amount=1)
        hoarded.wait(duration_ns=3 * NS_PER_S)
        hoarded.spend_all_there_is()

        hoarded.what_is_admitted_is_within_the_bound()
    finally:
        hoarded.teardown()


Leases.TestCase.settings = HoardedLeases.TestCase.settings = StrictLimits.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestLeases = Leases.TestCase
TestHoardedLeases = HoardedLeases.TestCase
TestStrictLimits = StrictLimits.TestCase
