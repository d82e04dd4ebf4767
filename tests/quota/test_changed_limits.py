"""A changed limit governs the generation that runs: it wakes whoever waits, and counts from the next slice on."""

import asyncio
from dataclasses import replace

from gateway.quota import QuotaBook
from gateway.quota_slices import SLICE_TOKENS, OutputSlices
from gateway.quota_terms import Charge, Denied, Dimension, Limit, Mode, Reserved
from tests.quota.test_slices import MINUTE_NS, SLOTS, TOKENS, Running

FULL = replace(TOKENS, burst=100)


class Changing(Running):
    """One whose limits change while it runs; `limits` are those of now. Sleep lasts for ever unless `sleeps`."""

    def __init__(self, limits, *, sleeps: bool = True, **more) -> None:
        super().__init__(limits, **more)
        self.sleeps = sleeps
        self.slices = OutputSlices(
            self.quota, self.holding, self.note_shadows, self.sleep, current_limits=lambda: self.limits
        )

    async def sleep(self, seconds: float) -> None:
        if self.sleeps:
            await super().sleep(seconds)
        else:
            self.waits_s.append(seconds)
            await asyncio.Event().wait()

    async def change(self, *limits: Limit) -> None:
        self.limits = limits
        self.slices.wake()
        for _ in range(50):
            await asyncio.sleep(0)


async def test_a_paused_generation_goes_on_as_soon_as_its_limit_is_raised():
    running = Changing([FULL], sleeps=False)
    await running.start()
    await running.generate(100)
    assert running.waits_s == [6.4]
    assert running.engine.grants == []
    await running.change(replace(FULL, burst=1000))
    assert running.engine.grants == [100 + SLICE_TOKENS]
    running.slices.end()


async def test_a_wake_for_another_change_only_asks_again():
    running = Changing([FULL], sleeps=False)
    await running.start()
    await running.generate(100)
    await running.change(FULL)
    assert running.waits_s == [6.4, 6.4]
    assert running.engine.grants == []
    running.slices.end()


async def test_a_lowered_limit_counts_from_the_next_slice_on():
    running = Changing([replace(TOKENS, burst=1000)])
    await running.start()
    await running.generate(100)
    assert running.waits_s == []
    running.limits = (Limit("team", Dimension.OUTPUT_TOKENS, 60, MINUTE_NS, 10),)
    await running.generate(150)
    assert running.waits_s != []
    running.slices.end()


async def test_a_new_limit_governs_what_runs_already_and_counts_what_comes_after_it():
    running = Changing([SLOTS, replace(TOKENS, burst=1000)], sleeps=False)
    await running.start()
    new = Limit("organization", Dimension.OUTPUT_TOKENS, 600, MINUTE_NS, SLICE_TOKENS)
    running.limits = (*running.limits, new)
    await running.generate(100)
    assert running.engine.grants == [164]
    assert await running.left(new) == 0
    await running.generate(164)
    assert running.waits_s == [6.4]
    running.slices.end()
    running.slices.settle(Charge(1, 0, 120))
    assert await running.left(new) == SLICE_TOKENS - 20
    assert await running.left(SLOTS) == 2


async def test_an_ended_limit_holds_nobody_up():
    running = Changing([FULL], sleeps=False)
    await running.start()
    await running.generate(100)
    await running.change()
    assert running.engine.grants == [164]
    running.slices.end()
    running.slices.settle(Charge(1, 0, 164))
    assert await running.left(FULL) == 0  # what it had is used, what came after it is not its affair
    denied = await running.quota.reserve("b", (FULL,), Charge(1, 0, 1))
    assert isinstance(denied, Denied)
    assert denied.violations[0].retry_after_ns == 100_000_000


def test_what_was_reserved_under_a_higher_limit_is_given_back_at_its_worth():
    book, high, low = QuotaBook(), replace(TOKENS, burst=1000), replace(TOKENS, limit=60, burst=1000)
    book.reserve("a", (high,), Charge(1, 0, 600), 0)  # a minute
    book.extend("a", Charge(0, 0, 10), 0, (low,))  # ten seconds
    book.settle("a", Charge(1, 0, 300), 0)
    book.reserve("b", (low,), Charge(1, 0, 1), 0)
    assert book.remaining(low, 0).reset_ns == 31_000_000_000  # thirty seconds were used


def test_a_shadow_that_refused_the_request_has_nothing_of_its_slices_until_it_binds():
    book = QuotaBook()
    shadow = replace(FULL, mode=Mode.SHADOW)
    book.reserve("other", (shadow,), Charge(1, 0, 100), 0)
    assert book.reserve("a", (shadow,), Charge(1, 0, 50), 0).shadow_violations
    reset_ns = book.remaining(FULL, 0).reset_ns
    assert isinstance(book.extend("a", Charge(0, 0, 10), 0, (shadow,)), Reserved)
    assert book.remaining(FULL, 0).reset_ns == reset_ns
    assert isinstance(book.extend("a", Charge(0, 0, 10), 0, (FULL,)), Denied)
