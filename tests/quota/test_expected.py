"""What a request is expected to need, what is idle, and what is kept of refusals."""

import asyncio
import random
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import UUID

from uuid_utils.compat import uuid7

from gateway.errors import NoEngineError
from gateway.metric_names import OTHER_TENANTS
from gateway.quota_denials import DenialLog, QuotaCounts
from gateway.quota_expected import BOUNDS, DEFAULT_TOKENS, ExpectedOutput
from gateway.quota_idle import ANSWER_LASTS_S, IdleTokens
from gateway.status import BlockCounts, RequestCounts
from gateway.store.denials import DenialEvent


def denial(*limits: tuple[str, str], is_shadow: bool = False) -> DenialEvent:
    nodes, dimensions = zip(*limits, strict=True)
    return DenialEvent(
        id=uuid7(),
        denied_at=datetime.now(UTC),
        organization_id=UUID(int=1),
        team_id=UUID(int=2),
        key_id=UUID(int=3),
        model="small",
        priority_class="default",
        input_tokens=5,
        max_output_tokens=8,
        reserved_tokens=13,
        reason="" if is_shadow else "RATE_LIMITED",
        is_shadow=is_shadow,
        nodes=nodes,
        dimensions=dimensions,
        waits_ms=(100,) * len(nodes),
        policy_revision=1,
    )


def test_little_is_expected_before_anything_is_known():
    expected = ExpectedOutput()
    assert expected.expected("team", "small") == DEFAULT_TOKENS
    for _ in range(5):
        expected.observe("team", "small", 4000)
    assert expected.expected("team", "small") == DEFAULT_TOKENS
    expected.observe("team", "small", 4000)
    assert expected.expected("team", "small") == 4096


def test_nine_in_ten_requests_fit_what_is_expected_and_half_of_it_would_not_do():
    rng, expected = random.Random(1), ExpectedOutput()
    lengths = [round(rng.lognormvariate(5, 0.8)) for _ in range(2000)]
    for length in lengths:
        expected.observe("team", "small", length)
    recent = lengths[-200:]
    guess = expected.expected("team", "small")
    assert sum(length <= guess for length in recent) / 200 >= 0.85
    assert sum(length <= guess / 2 for length in recent) / 200 < 0.85


def test_what_was_long_ago_is_forgotten():
    expected = ExpectedOutput()
    for _ in range(500):
        expected.observe("team", "small", 5000)
    for _ in range(150):
        expected.observe("team", "small", 10)
    assert expected.expected("team", "small") == 12


def test_tenants_and_models_are_apart_and_bounded_in_number():
    expected = ExpectedOutput(max_histograms=10)
    for n in range(10_000):
        expected.observe(f"team {n}", "small", 10)
    assert len(expected) == 10
    for _ in range(10):
        expected.observe("team", "small", 10)
    assert expected.expected("team", "large") == DEFAULT_TOKENS
    assert expected.expected("team", "small") == 12


def test_an_output_beyond_every_bound_counts_as_the_largest():
    expected = ExpectedOutput()
    for _ in range(10):
        expected.observe("team", "small", 10**9)
    assert expected.expected("team", "small") == BOUNDS[-1]


class Engines:
    """Two engines of one model."""

    def __init__(self) -> None:
        self.engines = [SimpleNamespace(address=name, stats=lambda name=name: self.stats(name)) for name in "ab"]
        self.free = {"a": 10, "b": 20}
        self.waiting = {"a": 0, "b": 0}
        self.away: set[str] = set()
        self.num_asked = 0

    def model_name_at(self, address: str) -> str:
        return "small"

    async def stats(self, name: str):
        self.num_asked += 1
        if name in self.away:
            raise NoEngineError
        return SimpleNamespace(
            requests=RequestCounts(0, self.waiting[name], 0, 0, 0),
            is_draining=False,
            blocks=BlockCounts(self.free[name], 0, 32, 0, 0, block_size=16),
        )


async def test_idle_tokens_are_given_once():
    idle = IdleTokens(Engines(), lambda: 0.0)
    assert [await idle.take("small", 200) is not None for _ in range(3)] == [True, False, False]
    assert await idle.take("small", 100)
    taken = await idle.take("small", 20)
    assert not await idle.take("small", 1)
    taken.give_back()
    taken.give_back()
    assert [await idle.take("small", 10) is not None for _ in range(3)] == [True, True, False]


async def test_what_is_given_back_late_does_not_count_for_a_newer_answer():
    now_s = [0.0]
    idle = IdleTokens(Engines(), lambda: now_s[0])
    taken = await idle.take("small", 200)
    now_s[0] += ANSWER_LASTS_S
    assert await idle.take("small", 320)
    taken.give_back()
    assert not await idle.take("small", 1)


async def test_an_engine_that_hangs_holds_up_its_own_model_only():
    engines = Engines()
    engines.model_name_at = {"a": "hung", "b": "small"}.get
    answer = engines.stats

    async def stats(name: str):
        if name == "a":
            await asyncio.Event().wait()
        return await answer(name)

    engines.stats = stats
    idle = IdleTokens(engines, lambda: 0.0)
    hung = asyncio.create_task(idle.take("hung", 1))
    await asyncio.sleep(0)
    assert await asyncio.wait_for(idle.take("small", 1), 1)
    hung.cancel()


async def test_nothing_is_idle_while_somebody_waits_or_the_engine_is_away():
    engines, now_s = Engines(), [0.0]
    idle = IdleTokens(engines, lambda: now_s[0])
    engines.away, engines.waiting = {"b"}, {"a": 1, "b": 0}
    assert not await idle.take("small", 1)
    now_s[0] += ANSWER_LASTS_S
    engines.waiting["a"] = 0
    assert await idle.take("small", 160)
    assert not await idle.take("large", 1)


async def test_engines_are_asked_once_for_a_burst_of_requests():
    engines = Engines()
    idle = IdleTokens(engines, lambda: 0.0)
    for _ in range(50):
        await idle.take("small", 1)
    assert engines.num_asked == 2


def test_every_violated_limit_counts_once_by_level_and_dimension():
    counts = QuotaCounts()
    team = "organizations/acme/teams/search"
    counts.count("acme/search", denial((team, "REQUESTS"), ("organizations/acme", "BUDGET")))
    counts.count("acme/search", denial((team, "REQUESTS")))
    counts.count("acme/search", denial((f"{team}/apiKeys/0123456789ab", "CONCURRENCY"), is_shadow=True))
    report = counts.report()
    assert report.denials == {
        ("acme/search", "team", "requests"): 2,
        ("acme/search", "organization", "budget"): 1,
    }
    assert report.shadow_denials == {("acme/search", "key", "concurrency"): 1}


def test_tenants_beyond_the_bound_are_counted_together():
    counts = QuotaCounts(max_tenants=3)
    for n in range(1000):
        counts.count(f"acme/{n}", denial(("organizations/acme", "REQUESTS")))
    assert len(counts.report().denials) == 4
    assert counts.report().denials[OTHER_TENANTS, "organization", "requests"] == 997


def test_refusals_beyond_the_bound_are_counted_and_not_kept():
    log = DenialLog(None, max_waiting=10)
    for _ in range(100):
        log.record("acme/search", denial(("organizations/acme", "REQUESTS")))
    assert log.num_waiting == 10
    assert log.counts.report().denials["acme/search", "organization", "requests"] == 100
