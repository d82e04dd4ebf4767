"""A running generation that has reserved what was expected: slices, pauses, best effort, ends. The clock is virtual."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from gateway.errors import StoreUnavailableError
from gateway.quota_slices import (
    AHEAD_TOKENS,
    BEST_EFFORT,
    SLICE_TOKENS,
    Holding,
    OutputSlices,
    WhenExhausted,
    largest_output,
)
from gateway.quota_terms import (
    BudgetWindow,
    Calendar,
    Charge,
    CostWeights,
    Denied,
    Dimension,
    Limit,
    Mode,
    Reserved,
)
from tests.quota.local_quota import LocalQuota

MINUTE_NS = 60_000_000_000
TOKENS = Limit("team", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, 200)
SLOTS = Limit("team", Dimension.CONCURRENCY, 2)


@dataclass
class Engine:
    """Writes down what it is told."""

    grants: list[int] = field(default_factory=list)
    classes: list[object] = field(default_factory=list)
    num_ends: int = 0

    def grant(self, max_output_tokens: int) -> None:
        self.grants.append(max_output_tokens)

    def set_class(self, priority_class: object) -> None:
        self.classes.append(priority_class)

    def finish(self) -> None:
        self.num_ends += 1


class Running:
    """One generation over a local quota, with time that passes when somebody waits for it."""

    def __init__(self, limits, *, granted: int = 100, most: int = 1000, when=WhenExhausted.PAUSE) -> None:
        self.now_ns = 0
        self.waits_s: list[float] = []
        self.quota = LocalQuota(lambda: self.now_ns)
        self.limits = tuple(limits)
        self.holding = Holding("g", self.limits, 0, granted, most, when)
        self.shadows: list[Limit] = []
        self.slices = OutputSlices(self.quota, self.holding, self.note_shadows, self.sleep)
        self.engine = Engine()

    def note_shadows(self, violations) -> None:
        self.shadows += [violation.limit for violation in violations]

    async def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        await asyncio.sleep(0)
        self.now_ns += round(seconds * 1e9)

    async def start(self) -> None:
        reserved = await self.quota.reserve("g", self.limits, Charge(1, 0, self.holding.num_granted_tokens))
        assert isinstance(reserved, Reserved)
        self.slices.begin(self.engine, self.engine.finish)

    async def generate(self, num_tokens: int) -> None:
        """The engine has got so far; everything that follows from it has happened."""
        self.slices.note(num_tokens)
        for _ in range(50):
            await asyncio.sleep(0)

    async def left(self, limit: Limit) -> int:
        return (await self.quota.status([limit]))[0].amount


async def test_a_slice_is_asked_for_a_little_ahead_and_only_then():
    running = Running([TOKENS])
    await running.start()
    await running.generate(100 - AHEAD_TOKENS - 1)
    assert running.engine.grants == []
    await running.generate(100 - AHEAD_TOKENS)
    assert running.engine.grants == [100 + SLICE_TOKENS]
    assert await running.left(TOKENS) == 200 - 100 - SLICE_TOKENS


async def test_the_last_slice_is_as_long_as_what_is_left():
    running = Running([TOKENS], most=110)
    await running.start()
    await running.generate(90)
    assert running.engine.grants == [110]
    await running.generate(110)
    assert running.engine.grants == [110]


async def test_what_is_sampled_never_exceeds_what_is_charged():
    running = Running([replace(TOKENS, burst=1000)], granted=10)
    await running.start()
    for num_tokens in range(1, 1001):
        await running.generate(num_tokens)
        charged = 1000 - await running.left(running.limits[0])
        assert running.slices.num_granted == charged >= num_tokens


async def test_pause_waits_for_exactly_the_refill_and_then_goes_on():
    running = Running([replace(TOKENS, burst=100)])
    await running.start()
    await running.generate(100)
    assert running.waits_s == [6.4]
    assert running.engine.grants == [100 + SLICE_TOKENS]
    assert running.engine.num_ends == 0


async def test_pause_waits_again_where_another_request_was_faster():
    running = Running([replace(TOKENS, burst=100)])
    await running.start()
    sleep = running.slices._sleep

    async def robbed(seconds: float) -> None:
        await sleep(seconds)
        if len(running.waits_s) == 1:
            assert isinstance(await running.quota.reserve("other", running.limits, Charge(1, 0, 64)), Reserved)

    running.slices._sleep = robbed
    await running.generate(100)
    assert running.waits_s == [6.4, 6.4]
    assert running.engine.grants == [164]


async def test_degrade_goes_on_as_best_effort_and_owes_the_rest():
    running = Running([replace(TOKENS, burst=100)], when=WhenExhausted.DEGRADE)
    await running.start()
    await running.generate(80)
    assert running.engine.classes == [BEST_EFFORT]
    assert running.engine.grants == [1000]
    running.slices.end()
    running.slices.settle(Charge(1, 0, 700))
    denied = await running.quota.reserve("b", running.limits, Charge(1, 0, 1))
    assert isinstance(denied, Denied)
    assert denied.violations[0].retry_after_ns == 60_100_000_000  # 601 tokens at ten a second


async def test_finish_lets_the_granted_tokens_be_used_up_first():
    running = Running([replace(TOKENS, burst=100)], when=WhenExhausted.FINISH)
    await running.start()
    await running.generate(90)
    assert running.engine.num_ends == 0
    await running.generate(100)
    assert running.engine.num_ends == 1
    assert running.engine.grants == []


async def test_finish_goes_on_where_the_bucket_has_refilled_meanwhile():
    running = Running([replace(TOKENS, burst=100)], when=WhenExhausted.FINISH)
    await running.start()
    await running.generate(90)
    running.now_ns += MINUTE_NS
    await running.generate(100)
    assert running.engine.num_ends == 0
    assert running.engine.grants == [164]


@pytest.mark.parametrize("when", list(WhenExhausted))
async def test_a_spent_budget_ends_it_whatever_the_request_says(when: WhenExhausted):
    window = BudgetWindow(Calendar.MONTH, 0, 10**18)
    budget = Limit("team", Dimension.BUDGET, 120, window=window, weights=CostWeights(1, 1, 1))
    running = Running([budget], when=when)
    await running.start()
    await running.generate(100)
    assert running.engine.num_ends == 1
    assert running.waits_s == []
    assert running.engine.classes == []


async def test_over_a_borrow_limit_the_rest_is_lent_and_charged_to_the_others_only():
    borrow = Limit("team", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, 100, mode=Mode.BORROW)
    ceiling = Limit("organization", Dimension.OUTPUT_TOKENS, 6000, MINUTE_NS, 300)
    running = Running([borrow, ceiling, SLOTS], most=280)
    await running.start()
    for num_tokens in (80, 150, 220, 280):
        await running.generate(num_tokens)
    assert running.engine.classes == [BEST_EFFORT]
    assert running.engine.grants[-1] == 280
    assert running.waits_s == []
    running.slices.end()
    running.slices.settle(Charge(1, 0, 250))
    assert await running.left(borrow) == 0
    assert await running.left(ceiling) == 50
    assert await running.left(SLOTS) == 2
    running.now_ns += MINUTE_NS // 6
    assert await running.left(borrow) == 100  # nothing is owed


async def test_lent_tokens_still_wait_for_the_limits_that_bind():
    borrow = Limit("team", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, 100, mode=Mode.BORROW)
    ceiling = Limit("organization", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, 120)
    running = Running([borrow, ceiling])
    await running.start()
    await running.generate(100)
    assert running.engine.classes == [BEST_EFFORT]
    assert running.waits_s == [4.4]
    assert running.engine.grants == [164]


async def test_a_shadow_that_would_refuse_a_slice_is_told_and_owed():
    shadow = replace(TOKENS, burst=100, mode=Mode.SHADOW)
    running = Running([shadow])
    await running.start()
    await running.generate(100)
    assert running.engine.grants == [164]
    assert running.shadows == [shadow]
    assert running.waits_s == []
    running.now_ns += 6_400_000_000
    assert await running.left(shadow) == 0


async def test_release_gives_everything_back():
    borrow = Limit("team", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, 100, mode=Mode.BORROW)
    running = Running([borrow, SLOTS], most=280)
    await running.start()
    await running.generate(100)
    running.slices.end()
    running.slices.release()
    running.slices.release()
    assert await running.left(borrow) == 100
    assert running.quota.num_reservations == 0


async def test_settlement_takes_back_what_was_extended_and_not_used():
    running = Running([TOKENS, SLOTS])
    await running.start()
    await running.generate(90)
    running.slices.end()
    running.slices.settle(Charge(1, 0, 91))
    running.slices.settle(Charge(1, 0, 91))
    assert await running.left(TOKENS) == 109
    assert running.quota.num_reservations == 0


async def test_the_end_of_a_waiting_generation_leaves_nothing_behind():
    running = Running([replace(TOKENS, burst=100)])

    async def for_ever(seconds: float) -> None:
        await asyncio.Event().wait()

    running.slices._sleep = for_ever
    await running.start()
    await running.generate(100)
    running.slices.end()
    running.slices.settle(Charge(1, 0, 100))
    for _ in range(5):
        await asyncio.sleep(0)
    assert running.engine.grants == []
    assert running.quota.num_reservations == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "quota of g"]


async def test_an_extension_that_comes_after_the_end_is_not_an_error():
    running = Running([TOKENS])
    await running.start()
    running.slices.settle(Charge(1, 0, 50))
    await running.generate(90)
    assert running.engine.grants == []
    assert running.engine.num_ends == 0


async def test_a_quota_that_cannot_be_asked_is_asked_again():
    running = Running([TOKENS])
    await running.start()
    extend, num_calls = running.quota.extend, 0

    async def flaky(*args):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise StoreUnavailableError
        return await extend(*args)

    running.quota.extend = flaky
    await running.generate(90)
    assert running.waits_s == [1.0]
    assert running.engine.grants == [164]


async def test_our_own_bug_ends_the_generation_instead_of_pausing_it_for_ever():
    running = Running([TOKENS])
    await running.start()

    async def broken(*args):
        raise KeyError("a bug")

    running.quota.extend = broken
    await running.generate(90)
    assert running.engine.num_ends == 1


def test_slices_fit_the_smallest_burst():
    cost = Limit("team", Dimension.COST_UNITS, 600, MINUTE_NS, 100, weights=CostWeights(1, 1, 7))
    total = Limit("team", Dimension.TOTAL_TOKENS, 600, MINUTE_NS, 50)
    assert largest_output([TOKENS, cost, total], 0) == 14
    assert largest_output([TOKENS, cost, total], 40) == 8
    assert largest_output([TOKENS, total], 40) == 10
    free = replace(cost, weights=CostWeights(1, 1, 0))
    assert largest_output([free, SLOTS], 0) > 10**9
    assert largest_output([replace(total, mode=Mode.BORROW)], 0) == 50
    assert largest_output([replace(total, mode=Mode.SHADOW)], 0) > 10**9


async def test_a_burst_smaller_than_a_slice_is_extended_bit_by_bit():
    running = Running([replace(TOKENS, burst=20)], granted=20, most=50)
    await running.start()
    await running.generate(20)
    assert running.engine.grants == [40, 50]
    assert running.waits_s == [2.0, 1.0]
