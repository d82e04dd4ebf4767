"""The book against an ideal model, over every dimension and mode: random reservations, extensions, ends and calendars.

The model keeps levels that fill in exact fractions, budgets as plain sums per window, slots as sets, and knows what an
all-or-none decision of those that bind, and one of the shadows, have to be. Limits are the same throughout; what a
changed limit does is tested in `test_guarantee`.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.quota import QuotaBook
from gateway.quota_budgets import MAX_WINDOWS
from gateway.quota_terms import (
    BudgetWindow,
    Calendar,
    Charge,
    CostWeights,
    Denied,
    Dimension,
    Limit,
    Mode,
    ReservationEndedError,
    ViolationKind,
)

WEIGHTS = CostWeights(input_token=3, cached_input_token=1, output_token=5)
DAY_NS = 100
RATES = (
    Dimension.REQUESTS,
    Dimension.INPUT_TOKENS,
    Dimension.OUTPUT_TOKENS,
    Dimension.TOTAL_TOKENS,
    Dimension.COST_UNITS,
)
NODES = {"key": Mode.ENFORCE, "team": Mode.BORROW, "organization": Mode.SHADOW, "other": Mode.ENFORCE}


def amount_of(dimension: Dimension, charge: Charge) -> int:
    """In the words of the policy, not of the implementation."""
    return {
        Dimension.REQUESTS: charge.requests,
        Dimension.INPUT_TOKENS: charge.input_tokens,
        Dimension.OUTPUT_TOKENS: charge.output_tokens,
        Dimension.TOTAL_TOKENS: charge.input_tokens + charge.output_tokens,
        Dimension.COST_UNITS: 3 * charge.input_tokens - 2 * charge.cached_input_tokens + 5 * charge.output_tokens,
        Dimension.BUDGET: 3 * charge.input_tokens - 2 * charge.cached_input_tokens + 5 * charge.output_tokens,
        Dimension.CONCURRENCY: 1,
    }[dimension]


@dataclass
class Ideal:
    """One limit, as it should be."""

    limit: Limit
    level: Fraction
    filled_ns: int = 0
    spent: dict[int, int] = field(default_factory=dict)
    holders: set[str] = field(default_factory=set)

    def at(self, now_ns: int) -> Limit:
        """The limit as a decision at this moment sees it."""
        if not self.limit.is_budget:
            return self.limit
        start_ns = now_ns // DAY_NS * DAY_NS
        return replace(self.limit, window=BudgetWindow(Calendar.DAY, start_ns, start_ns + DAY_NS))

    def fill(self, now_ns: int) -> None:
        if self.limit.is_rate:
            gained = Fraction((now_ns - self.filled_ns) * self.limit.limit, self.limit.period_ns)
            self.level = min(Fraction(self.limit.burst), self.level + gained)
            self.filled_ns = now_ns

    def refuses(self, charge: Charge, now_ns: int) -> bool:
        amount = amount_of(self.limit.dimension, charge)
        if self.limit.is_concurrency:
            return len(self.holders) >= self.limit.limit
        if self.limit.is_budget:
            is_long_over = sum(day > now_ns // DAY_NS for day in self.spent) >= MAX_WINDOWS
            return is_long_over or self.spent.get(now_ns // DAY_NS, 0) + amount > self.limit.limit
        return amount > self.level

    def charge(self, request: str, amount: int, now_ns: int) -> None:
        if self.limit.is_concurrency:
            self.holders.add(request)
        elif self.limit.is_budget:
            self.spent[now_ns // DAY_NS] = self.spent.get(now_ns // DAY_NS, 0) + amount
        else:
            self.level -= amount

    def end(self, request: str, excess: int, reserved_ns: int, now_ns: int) -> None:
        if self.limit.is_concurrency:
            self.holders.discard(request)
        elif self.limit.is_budget:
            # A debt is the window's that it was reserved in, as is a refund, and that may be over.
            self.spent[reserved_ns // DAY_NS] = self.spent.get(reserved_ns // DAY_NS, 0) + excess
        else:
            self.level = min(Fraction(self.limit.burst), self.level - excess)

    def remaining(self, now_ns: int) -> int:
        if self.limit.is_concurrency:
            return max(0, self.limit.limit - len(self.holders))
        if self.limit.is_budget:
            return max(0, self.limit.limit - self.spent.get(now_ns // DAY_NS, 0))
        return max(0, self.level.numerator // self.level.denominator)


@dataclass
class Live:
    charge: Charge
    charged: list[Ideal]
    reserved_ns: int


def ideal(node: str, dimension: Dimension, limit: int, period_ns: int, burst: int) -> Ideal:
    mode = NODES[node]
    if dimension is Dimension.BUDGET:
        window = BudgetWindow(Calendar.DAY, 0, DAY_NS)
        made = Limit(node, dimension, 20 * limit, window=window, weights=WEIGHTS, mode=mode)
    elif dimension is Dimension.CONCURRENCY:
        made = Limit(node, dimension, limit, mode=mode)
    else:
        scale = 4 if dimension is Dimension.COST_UNITS else 1
        made = Limit(node, dimension, limit, period_ns, scale * burst, weights=WEIGHTS, mode=mode)
    return Ideal(made, Fraction(made.burst))


CHARGES = st.builds(
    lambda inputs, outputs, cached: Charge(1, inputs, outputs, min(cached, inputs)),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 6),
)


class AnyLimits(RuleBasedStateMachine):
    @initialize(
        chosen=st.lists(
            st.tuples(
                st.sampled_from(sorted(NODES)),
                st.sampled_from(list(Dimension)),
                st.integers(1, 8),
                st.integers(1, 160),
                st.integers(1, 20),
            ),
            min_size=1,
            max_size=10,
            unique_by=lambda one: one[:2],
        )
    )
    def start(self, chosen):
        self.book, self.now_ns, self.number = QuotaBook(), 0, 0
        self.ideals = [ideal(*one) for one in chosen]
        self.live: dict[str, Live] = {}

    @rule(wait_ns=st.integers(0, 70))
    def wait(self, wait_ns: int):
        self.now_ns += wait_ns
        for each in self.ideals:
            each.fill(self.now_ns)

    def split(self, ideals: list[Ideal]) -> tuple[list[Ideal], list[Ideal]]:
        return (
            [each for each in ideals if each.limit.mode is not Mode.SHADOW],
            [each for each in ideals if each.limit.mode is Mode.SHADOW],
        )

    @rule(charge=CHARGES)
    def reserve(self, charge: Charge):
        self.number += 1
        request = f"r{self.number}"
        binding, shadows = self.split(self.ideals)
        refusing = [each for each in binding if each.refuses(charge, self.now_ns)]
        shadowed = [each for each in shadows if each.refuses(charge, self.now_ns)]
        limits = [each.at(self.now_ns) for each in self.ideals]
        verdict = self.book.reserve(request, limits, charge, self.now_ns)
        if refusing:
            assert isinstance(verdict, Denied)
            assert [v.limit.key for v in verdict.violations] == [each.limit.key for each in refusing]
            self.check_waits(verdict, charge)
            return
        assert not isinstance(verdict, Denied)
        assert [v.limit.key for v in verdict.shadow_violations] == [each.limit.key for each in shadowed]
        charged = binding if shadowed else binding + shadows
        for each in charged:
            each.charge(request, amount_of(each.limit.dimension, charge), self.now_ns)
        self.live[request] = Live(charge, charged, self.now_ns)

    def check_waits(self, verdict: Denied, charge: Charge) -> None:
        """After the longest wait every rate lets the charge pass, and one nanosecond earlier not."""
        rates = [v for v in verdict.violations if v.kind is ViolationKind.RATE]
        for violation in rates:
            probe = lambda at_ns, limit=violation.limit: self.book._buckets.find_violation(  # noqa: E731
                limit, limit.amount(charge), at_ns
            )
            assert probe(self.now_ns + violation.retry_after_ns) is None
            assert probe(self.now_ns + violation.retry_after_ns - 1) is not None

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.integers(1, 6))
    def extend(self, data, more: int):
        request = data.draw(st.sampled_from(sorted(self.live)))
        live, charge = self.live[request], Charge(0, output_tokens=more)
        taken = [
            each
            for each in live.charged
            if not each.limit.is_concurrency and amount_of(each.limit.dimension, charge) > 0
        ]
        binding, shadows = self.split(taken)
        # A budget is extended in the window that the request was reserved in.
        refusing = [each for each in binding if self.refuses_more(each, live, charge)]
        shadowed = [each for each in shadows if self.refuses_more(each, live, charge)]
        verdict = self.book.extend(request, charge, self.now_ns)
        if refusing:
            assert isinstance(verdict, Denied)
            assert [v.limit.key for v in verdict.violations] == [each.limit.key for each in refusing]
            return
        assert not isinstance(verdict, Denied)
        assert [v.limit.key for v in verdict.shadow_violations] == [each.limit.key for each in shadowed]
        for each in taken:
            moment_ns = live.reserved_ns if each.limit.is_budget else self.now_ns
            each.charge(request, amount_of(each.limit.dimension, charge), moment_ns)
        live.charge = live.charge.plus(charge)
        assert verdict.charge == live.charge

    def refuses_more(self, each: Ideal, live: Live, charge: Charge) -> bool:
        return each.refuses(charge, live.reserved_ns if each.limit.is_budget else self.now_ns)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), used=CHARGES, how=st.sampled_from(["settle", "release"]))
    def end(self, data, used: Charge, how: str):
        request = data.draw(st.sampled_from(sorted(self.live)))
        live = self.live.pop(request)
        actual = used if how == "settle" else Charge(0)
        if how == "settle":
            assert self.book.settle(request, actual, self.now_ns)
        else:
            assert self.book.release(request, self.now_ns)
        for each in live.charged:
            dimension = each.limit.dimension
            excess = amount_of(dimension, actual) - amount_of(dimension, live.charge)
            each.end(request, excess, live.reserved_ns, self.now_ns)
        assert not self.book.settle(request, used, self.now_ns)
        with pytest.raises(ReservationEndedError):
            self.book.extend(request, Charge(0, output_tokens=1), self.now_ns)

    @invariant()
    def what_remains_is_what_should(self):
        for each in self.ideals:
            assert self.book.remaining(each.at(self.now_ns), self.now_ns).amount == each.remaining(self.now_ns)

    @invariant()
    def nothing_piles_up(self):
        assert self.book.num_reservations == len(self.live)
        assert self.book.num_buckets <= sum(each.limit.is_rate for each in self.ideals)


TestAnyLimits = AnyLimits.TestCase
TestAnyLimits.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
