"""Updates of one request: in order, once, joined while nobody reads."""

import asyncio

from engine.core.errors import DuplicateRequestError
from engine.core.events import Admitted, Finished, Preempted, Resumed, Timings, TokensEmitted, Usage
from engine.core.plan import TokenLogprobs
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, SequenceKey
from engine.loop_messages import Accepted, Refused
from engine.server.mailbox import Mailbox

KEY = SequenceKey("g", 0)
FINISHED = Finished(KEY, FinishReason.STOP, Usage(1, 0, 3, 0, 0), Timings(0, 0, 0, 0, 1, 2))


def tokens(*token_ids, logprobs=()):
    return TokensEmitted(KEY, token_ids, logprobs)


def filled(*updates) -> Mailbox:
    mailbox = Mailbox(lambda update, at: None)
    for update in updates:
        mailbox.put(update, Nanos(0))
    return mailbox


async def test_tokens_that_wait_become_one_update():
    mailbox = filled(Accepted(), Admitted(KEY, Nanos(5)), tokens(1), tokens(2, 3), tokens(4))
    assert await mailbox.take() == [Accepted(), Admitted(KEY, Nanos(5)), tokens(1, 2, 3, 4)]


async def test_logprobs_stay_beside_their_tokens():
    mailbox = filled(tokens(1, logprobs=(TokenLogprobs(-1.0),)), tokens(2, logprobs=(TokenLogprobs(-2.0),)))
    assert await mailbox.take() == [tokens(1, 2, logprobs=(TokenLogprobs(-1.0), TokenLogprobs(-2.0)))]


async def test_order_across_a_preemption_is_kept():
    preempted = Preempted(KEY, PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE)
    mailbox = filled(tokens(1), tokens(2), preempted, Resumed(KEY), tokens(3), FINISHED)
    assert await mailbox.take() == [tokens(1, 2), preempted, Resumed(KEY), tokens(3), FINISHED]


async def test_taken_updates_do_not_come_again():
    mailbox = filled(tokens(1))
    await mailbox.take()
    mailbox.put(tokens(2), Nanos(0))
    assert await mailbox.take() == [tokens(2)]


async def test_take_waits_for_an_update():
    mailbox = filled()
    taking = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not taking.done()
    mailbox.put(tokens(7), Nanos(0))
    assert await taking == [tokens(7)]


async def test_nothing_comes_after_the_end():
    for end in (FINISHED, Refused(DuplicateRequestError("g"))):
        mailbox = filled(tokens(1), end, tokens(2), FINISHED)
        assert mailbox.has_ended
        assert await mailbox.take() == [tokens(1), end]


def test_each_update_is_observed_once_with_its_time():
    observed = []
    mailbox = Mailbox(lambda update, at: observed.append((update, at)))
    mailbox.put(tokens(1), Nanos(3))
    mailbox.put(FINISHED, Nanos(4))
    mailbox.put(tokens(2), Nanos(5))
    assert observed == [(tokens(1), 3), (FINISHED, 4)]
