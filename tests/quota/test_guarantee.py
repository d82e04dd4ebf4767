"""The promise of a bucket, by brute force over every window, and its decisions against an implementation not ours.

The state machine compares the book with the dual formulation: levels that fill at limit / period up to the burst, in
exact fractions.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from throttled import RateLimiterType, Throttled, rate_limiter, store, utils

from gateway.quota import QuotaBook
from gateway.quota_terms import Charge, Denied, Dimension, Limit, Reserved, ViolationKind

LIMITS = st.builds(
    Limit,
    node=st.just("team"),
    dimension=st.just(Dimension.OUTPUT_TOKENS),
    limit=st.integers(1, 50),
    period_ns=st.integers(1, 200),
    burst=st.integers(1, 30),
)


@dataclass(frozen=True)
class Entry:
    """A change of what was charged, at a time. `is_admission` is false for refunds and debts."""

    now_ns: int
    amount: int
    is_admission: bool


def output(tokens: int) -> Charge:
    return Charge(output_tokens=tokens)


def run_traffic(limit: Limit, data: st.DataObject, *, with_debt: bool) -> list[Entry]:
    """Random reservations and settlements of one bucket, in time order."""
    book, entries, live, now_ns = QuotaBook(), [], {}, 0
    for number in range(data.draw(st.integers(1, 40))):
        now_ns += data.draw(st.integers(0, 40))
        if live and data.draw(st.booleans()):
            request = data.draw(st.sampled_from(sorted(live)))
            reserved = live.pop(request)
            actual = data.draw(st.integers(0, reserved + (20 if with_debt else 0)))
            assert book.settle(request, output(actual), now_ns)
            entries.append(Entry(now_ns, actual - reserved, is_admission=False))
            continue
        amount = data.draw(st.integers(0, limit.burst))
        request = f"r{number}"
        if isinstance(book.reserve(request, [limit], output(amount), now_ns), Reserved):
            live[request] = amount
            entries.append(Entry(now_ns, amount, is_admission=True))
    return entries


@settings(max_examples=400, deadline=None)
@given(limit=LIMITS, with_debt=st.booleans(), data=st.data())
def test_no_window_that_ends_with_an_admission_holds_more_than_burst_and_rate(limit, with_debt, data):
    entries = run_traffic(limit, data, with_debt=with_debt)
    totals = [0, *accumulate(entry.amount for entry in entries)]
    for last, end in enumerate(entries):
        if not end.is_admission:
            continue
        for first, start in enumerate(entries[: last + 1]):
            charged = totals[last + 1] - totals[first]
            assert charged * limit.period_ns <= (
                limit.burst * limit.period_ns + limit.limit * (end.now_ns - start.now_ns)
            )


@settings(max_examples=300, deadline=None)
@given(limit=LIMITS, data=st.data())
def test_retry_after_is_the_first_nanosecond_at_which_a_lone_client_succeeds(limit, data):
    book, now_ns = QuotaBook(), 0
    for number in range(data.draw(st.integers(1, 30))):
        now_ns += data.draw(st.integers(0, 40))
        charge = output(data.draw(st.integers(0, limit.burst)))
        verdict = book.reserve(f"r{number}", [limit], charge, now_ns)
        if isinstance(verdict, Denied):
            wait_ns = verdict.violations[0].retry_after_ns
            assert wait_ns >= 1
            assert isinstance(book.reserve(f"r{number}", [limit], charge, now_ns + wait_ns - 1), Denied)
            now_ns += wait_ns
            assert isinstance(book.reserve(f"r{number}", [limit], charge, now_ns), Reserved)


@settings(max_examples=300, deadline=None)
@given(limit=LIMITS, data=st.data())
def test_remaining_is_the_largest_charge_that_is_admitted(limit, data):
    book, now_ns = QuotaBook(), 0
    for number in range(data.draw(st.integers(1, 20))):
        now_ns += data.draw(st.integers(0, 40))
        remaining = book.remaining(limit, now_ns).amount
        assert isinstance(book.reserve("probe", [limit], output(remaining + 1), now_ns), Denied)
        assert isinstance(book.reserve(f"r{number}", [limit], output(remaining), now_ns), Reserved)
        book.settle(f"r{number}", output(data.draw(st.integers(0, remaining))), now_ns)


STEP_NS = 1_953_125
"""1/512 s: with intervals of 1, 1/2, 1/4 and 1/8 s every float of the peer is exact."""


@pytest.mark.parametrize("per_second", [1, 2, 4, 8])
@settings(max_examples=60, deadline=None)
@given(
    burst=st.integers(1, 12),
    calls=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 13)), min_size=1, max_size=40),
)
def test_decisions_and_waits_equal_those_of_throttled_py(per_second, burst, calls):
    clock_s = [1.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "now_mono_f", lambda: clock_s[0])
        peer = Throttled(
            using=RateLimiterType.GCRA.value,
            quota=rate_limiter.per_duration(timedelta(seconds=1), limit=per_second, burst=burst),
            store=store.MemoryStore(),
        )
        book = QuotaBook()
        limit = Limit("team", Dimension.OUTPUT_TOKENS, per_second, 1_000_000_000, burst)
        now_ns = 1_000_000_000
        for number, (num_steps, amount) in enumerate(calls):
            now_ns += num_steps * STEP_NS
            clock_s[0] = now_ns / 1e9
            theirs = peer.limit("team", amount)
            ours = book.reserve(f"r{number}", [limit], output(amount), now_ns)
            assert isinstance(ours, Denied) == theirs.limited
            assert book.remaining(limit, now_ns).amount == theirs.state.remaining
            assert book.remaining(limit, now_ns).reset_ns == pytest.approx(theirs.state.reset_after * 1e9)
            if isinstance(ours, Denied) and ours.violations[0].kind is ViolationKind.RATE:
                assert ours.violations[0].retry_after_ns == pytest.approx(theirs.state.retry_after * 1e9)


@dataclass
class Level:
    """The reference bucket: `tokens` may be below zero (debt), and are at most the burst."""

    limit: Limit
    tokens: Fraction
    now_ns: int = 0

    def fill(self, now_ns: int) -> None:
        gained = Fraction((now_ns - self.now_ns) * self.limit.limit, self.limit.period_ns)
        self.tokens = min(Fraction(self.limit.burst), self.tokens + gained)
        self.now_ns = now_ns

    def give_back(self, amount: Fraction) -> None:
        self.tokens = min(Fraction(self.limit.burst), self.tokens + amount)

    def change(self, limit: Limit) -> None:
        """The time until the bucket is full again stays as it was."""
        to_fill_ns = (self.limit.burst - self.tokens) * self.limit.period_ns / self.limit.limit
        self.limit = limit
        self.tokens = limit.burst - to_fill_ns * limit.limit / limit.period_ns


class BookMachine(RuleBasedStateMachine):
    """Three nodes with two rate limits and slots each; limits change while requests are live.

    Limits are powers of two and periods multiples of 16, so that a change needs no rounding.
    """

    nodes = ("key", "team", "organization")
    dimensions = (Dimension.REQUESTS, Dimension.TOTAL_TOKENS)

    @initialize()
    def start(self):
        self.book, self.now_ns, self.number = QuotaBook(), 0, 0
        self.levels: dict[tuple[str, Dimension], Level] = {}
        self.slots: dict[str, Limit] = {}
        self.live: dict[str, tuple[tuple[Limit, ...], Charge]] = {}
        for node in self.nodes:
            for dimension in self.dimensions:
                limit = Limit(node, dimension, 4, 64, 10)
                self.levels[node, dimension] = Level(limit, Fraction(limit.burst))
            self.slots[node] = Limit(node, Dimension.CONCURRENCY, 4)

    def holders(self, node: str) -> int:
        return sum(
            any(limit.node == node and limit.is_concurrency for limit in limits) for limits, _ in self.live.values()
        )

    @rule(wait_ns=st.integers(0, 60))
    def wait(self, wait_ns: int):
        self.now_ns += wait_ns
        for level in self.levels.values():
            level.fill(self.now_ns)

    @rule(depth=st.integers(1, 3), input_tokens=st.integers(0, 6), output_tokens=st.integers(0, 6))
    def reserve(self, depth: int, input_tokens: int, output_tokens: int):
        charge = Charge(1, input_tokens, output_tokens)
        path = self.nodes[:depth]
        levels = [self.levels[node, dimension] for node in path for dimension in self.dimensions]
        limits = (*(level.limit for level in levels), *(self.slots[node] for node in path))
        expected = {lv.limit.key for lv in levels if lv.limit.amount(charge) > min(lv.tokens, lv.limit.burst)}
        expected |= {self.slots[node].key for node in path if self.holders(node) >= self.slots[node].limit}
        self.number += 1
        verdict = self.book.reserve(f"r{self.number}", limits, charge, self.now_ns)
        if isinstance(verdict, Denied):
            assert {violation.limit.key for violation in verdict.violations} == expected
            return
        assert expected == set()
        self.live[f"r{self.number}"] = (limits, charge)
        for level in levels:
            level.tokens -= level.limit.amount(charge)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), input_tokens=st.integers(0, 8), output_tokens=st.integers(0, 8), twice=st.booleans())
    def settle(self, data, input_tokens: int, output_tokens: int, twice: bool):
        request = data.draw(st.sampled_from(sorted(self.live)))
        limits, reserved = self.live.pop(request)
        actual = Charge(1, input_tokens, output_tokens)
        assert self.book.settle(request, actual, self.now_ns)
        for limit in limits:
            if limit.is_concurrency:
                continue
            level = self.levels[limit.node, limit.dimension]
            refund = limit.amount(reserved) - limit.amount(actual)
            rate_change = Fraction(limit.period_ns * level.limit.limit, limit.limit * level.limit.period_ns)
            if refund >= 0:
                level.give_back(refund * rate_change)
            else:
                self.owe(level, limit, -refund)
        if twice:
            assert not self.book.settle(request, actual, self.now_ns)

    def owe(self, level: Level, limit: Limit, amount: int) -> None:
        level.tokens -= amount * Fraction(limit.period_ns * level.limit.limit, limit.limit * level.limit.period_ns)

    @rule(
        node=st.sampled_from(nodes),
        dimension=st.sampled_from(dimensions),
        limit=st.sampled_from([1, 2, 4, 8]),
        period_ns=st.sampled_from([16, 64, 160]),
        burst=st.integers(1, 20),
    )
    def change_limit(self, node: str, dimension: Dimension, limit: int, period_ns: int, burst: int):
        self.levels[node, dimension].change(Limit(node, dimension, limit, period_ns, burst))

    @rule(node=st.sampled_from(nodes), limit=st.integers(1, 5))
    def change_slots(self, node: str, limit: int):
        self.slots[node] = replace(self.slots[node], limit=limit)

    @invariant()
    def remaining_equals_the_reference(self):
        for level in self.levels.values():
            amount = max(0, level.tokens.numerator // level.tokens.denominator)
            assert self.book.remaining(level.limit, self.now_ns).amount == amount
        for node, limit in self.slots.items():
            assert self.book.remaining(limit, self.now_ns).amount == max(0, limit.limit - self.holders(node))

    @invariant()
    def nothing_piles_up(self):
        assert self.book.num_reservations == len(self.live)
        assert self.book.num_buckets <= len(self.levels)


TestBookMachine = BookMachine.TestCase
TestBookMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
