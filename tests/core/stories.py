"""What must be true of a run in the end: each request has one story, nothing is left, and accounts add up."""

from collections import abc

from engine.core.events import Admitted, Event, Finished, Preempted, Resumed, TokensEmitted
from engine.core.policy import Service
from engine.core.types import FinishReason, PreemptionMode, Request
from tests.builders import Driver
from tests.fakes import expected_output


def check_story(driver: Driver, request: Request) -> None:
    """One end, nothing after it, and between preemption and resumption no tokens."""
    story = [event for event in driver.events if event.key.generation_id == request.generation_id]
    end = driver.finished(request.generation_id)
    assert story[-1] is end
    _check_text(driver, request, end)
    _check_order(story)
    num_lost_blocks = sum(isinstance(e, Preempted) and e.mode is not PreemptionMode.PAUSE for e in story)
    assert end.usage.num_preemptions == num_lost_blocks
    timings = end.timings
    assert 0 <= timings.preempted_ns <= timings.prefill_ns + timings.decode_ns
    assert (end.usage.num_prompt_tokens == 0) <= (end.usage.num_output_tokens == 0)


def _check_text(driver: Driver, request: Request, end: Finished) -> None:
    output = driver.output(request.generation_id)
    expected = expected_output(request)
    assert end.usage.num_output_tokens == len(output)
    if end.reason is FinishReason.LENGTH:
        assert output == expected
        assert len(output) == request.max_output_tokens
    else:
        assert output == expected[: len(output)]
    if end.reason is FinishReason.LENGTH or (end.reason is FinishReason.STOP and output == expected):
        assert end.usage.num_prompt_tokens == len(request.prompt_token_ids)


def _check_order(story: list[Event]) -> None:
    is_running = False
    for position, event in enumerate(story):
        match event:
            case Admitted():
                assert position == 0
                is_running = True
            case Resumed():
                assert not is_running
                is_running = True
            case Preempted():
                assert position > 0
                is_running = False
            case TokensEmitted():
                assert is_running
                assert event.token_ids


def check_nothing_is_left(driver: Driver) -> None:
    """Every block of both pools and every row is free, and nobody is waited for."""
    scheduler = driver.scheduler
    stats = scheduler.stats()
    assert not scheduler.has_unfinished
    assert not scheduler.num_copies_in_flight
    counts = (stats.num_running, stats.num_waiting, stats.num_paused, stats.num_swapped, stats.num_swapping)
    assert counts == (0, 0, 0, 0, 0)
    assert (stats.num_free_blocks, stats.num_fenced_blocks) == (scheduler.config.num_device_blocks, 0)
    assert stats.num_free_host_blocks == scheduler.config.num_host_blocks
    assert scheduler.lifecycle.rows.num_free == scheduler.config.max_num_seqs
    assert scheduler.lifecycle.policy.select(()) is None
    assert scheduler.next_expiry() is None
    assert scheduler.policy_fault is None
    scheduler.lifecycle.blocks.forget_cached()
    assert len(list(scheduler.lifecycle.blocks.pool.free_ids)) == scheduler.config.num_device_blocks


def check_accounts(driver: Driver, charged: abc.Iterable[Service]) -> None:
    """What was charged is what was computed or emitted once."""
    charged = list(charged)
    ends = [event for event in driver.events if isinstance(event, Finished)]
    for field in ("num_prompt_tokens", "num_output_tokens", "num_recomputed_tokens"):
        service_field = "num_prefill_tokens" if field == "num_prompt_tokens" else field
        used = sum(getattr(end.usage, field) for end in ends)
        if field == "num_prompt_tokens":  # what was found is charged to nobody
            used -= sum(end.usage.num_cached_prompt_tokens for end in ends)
        assert used == sum(getattr(service, service_field) for service in charged)
        assert used == sum(getattr(tenant, service_field) for tenant in driver.scheduler.stats().tenants)
    totals = driver.scheduler.stats().totals
    assert totals.num_drafted_tokens == sum(end.usage.num_drafted_tokens for end in ends)
    assert totals.num_accepted_tokens == sum(end.usage.num_accepted_tokens for end in ends)
    found = sum(end.usage.num_cached_prompt_tokens for end in ends)
    assert found == sum(tenant.num_found_tokens for tenant in driver.scheduler.stats().tenants)
    borrowed = sum(service.num_prefill_tokens + service.num_output_tokens for service in charged if service.is_borrowed)
    assert borrowed == sum(tenant.num_borrowed_tokens for tenant in driver.scheduler.stats().tenants)
