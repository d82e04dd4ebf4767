"""Quotas over one and over four gateway processes: overshoot, the rate in the long run, retries, load on Postgres.

200 callers, half of them streaming, ask for a few times what the limit gives, against a strict and then a leased limit.
Overshoot counts what was surely admitted inside a window, by the times at which callers asked and knew, over what one
bucket admits in it. Retries are of clients that wait exactly as long as they were told and then ask another gateway.
Writes are the gateways' statements at the shared limits while a leased tenant is inside its limit; they are counted at
two rates of requests, ten times apart. Keys end in the number of gateways; without it, they are the worse of the two.
"""

import asyncio
import time
from dataclasses import dataclass

from gateway.leases.terms import LEASE_NS
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit, QuotaPolicySettings
from tests.bench.quota_fleet import NS_PER_S, Fleet, Outcome, running
from tests.bench.report import Report, arguments

FLEETS = (1, 4)
LIMIT, BURST, REQUEST_TOKENS = 500, 1_000, 50  # per second
PAUSE_S = 0.5
HIGHER_IS_BETTER = ("retry_success",)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long and how much."""

    num_callers: int
    flood_s: float
    num_retriers: int
    retries_s: float
    writes_s: float


FULL = Sizes(num_callers=200, flood_s=20, num_retriers=10, retries_s=20, writes_s=10)
QUICK = Sizes(num_callers=50, flood_s=3, num_retriers=4, retries_s=4, writes_s=3)


def policy(limit: int, burst: int, *, is_strict: bool = False) -> QuotaPolicySettings:
    """So many input tokens per second."""
    return QuotaPolicySettings(limits=(QuotaLimit(Dimension.INPUT_TOKENS, limit, 1000, burst),), strict=is_strict)


async def flood(fleet: Fleet, key: str, sizes: Sizes) -> list[Outcome]:
    """All calls of callers that ask again whatever they are told, in the order in which they asked."""
    ends_s = time.monotonic() + sizes.flood_s
    outcomes: list[Outcome] = []

    async def call(caller: int) -> None:
        while time.monotonic() < ends_s:
            outcomes.append(await fleet.call(key, REQUEST_TOKENS, caller, is_stream=caller % 2 == 0))
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(call(caller) for caller in range(sizes.num_callers)))
    return sorted(outcomes, key=lambda outcome: outcome.asked_ns)


def overshoot(outcomes: list[Outcome]) -> float:
    """The largest excess of any window, in tokens; negative where no window is full."""
    admitted = sorted((outcome.known_ns, outcome.asked_ns) for outcome in outcomes if outcome.retry_s is None)
    worst = float(-BURST)
    for begin_ns in {asked_ns for _, asked_ns in admitted}:
        inside = (known_ns for known_ns, asked_ns in admitted if asked_ns >= begin_ns)
        for number, end_ns in enumerate(inside, 1):
            worst = max(worst, number * REQUEST_TOKENS - BURST - LIMIT * (end_ns - begin_ns) / NS_PER_S)
    return worst


def rate_error(outcomes: list[Outcome]) -> float:
    """By how much what was admitted differs from the burst and the rate, as a share of it."""
    admitted = [outcome for outcome in outcomes if outcome.retry_s is None]
    took_s = (max(outcome.known_ns for outcome in admitted) - outcomes[0].asked_ns) / NS_PER_S
    expected = BURST + LIMIT * took_s
    return abs(len(admitted) * REQUEST_TOKENS - expected) / expected


async def retry_success(fleet: Fleet, keys: list[str], duration_s: float) -> float:
    """The share of retries that are admitted."""
    ends_s = time.monotonic() + duration_s
    results: list[bool] = []

    async def retry(client: int, key: str) -> None:
        gateway = client
        while time.monotonic() < ends_s:
            outcome = await fleet.call(key, REQUEST_TOKENS, gateway)
            if outcome.retry_s is not None:
                await asyncio.sleep(outcome.retry_s)
                gateway += 1
                results.append((await fleet.call(key, REQUEST_TOKENS, gateway)).retry_s is None)

    await asyncio.gather(*(retry(client, key) for client, key in enumerate(keys)))
    return sum(results) / len(results)


async def writes_per_second(fleet: Fleet, key: str, num_callers: int, duration_s: float) -> float:
    """While so many callers make two requests a second each, all of them inside the limit."""
    ends_s = time.monotonic() + duration_s

    async def call(caller: int) -> None:
        while time.monotonic() < ends_s:
            outcome = await fleet.call(key, 1, caller)
            assert outcome.retry_s is None, "the limit is far away"
            await asyncio.sleep(PAUSE_S)

    before, began_s = await fleet.num_turns(), time.monotonic()
    await asyncio.gather(*(call(caller) for caller in range(num_callers)))
    return (await fleet.num_turns() - before) / (time.monotonic() - began_s)


async def measure(num_gateways: int, sizes: Sizes) -> dict[str, float]:
    """One repetition."""
    async with running(num_gateways) as fleet:
        strict = await flood(fleet, await fleet.tenant("strict", policy(LIMIT, BURST, is_strict=True)), sizes)
        leased = await flood(fleet, await fleet.tenant("leased", policy(LIMIT, BURST)), sizes)
        keys = [await fleet.tenant(f"retrier-{n}", policy(100, 200)) for n in range(sizes.num_retriers)]
        success = await retry_success(fleet, keys, sizes.retries_s)
        rich = await fleet.tenant("rich", policy(1_000_000, 10_000_000))
        few = await writes_per_second(fleet, rich, sizes.num_callers // 10, sizes.writes_s)
        many = await writes_per_second(fleet, rich, sizes.num_callers, sizes.writes_s)
    return {
        "strict_overshoot_tokens": max(0.0, overshoot(strict)),
        "leased_overshoot_over_bound": max(0.0, overshoot(leased)) / (LIMIT * LEASE_NS / NS_PER_S),
        "long_run_rate_error": max(rate_error(strict), rate_error(leased)),
        "retry_success": success,
        "database_writes_per_second": many,
        "database_writes_per_second_at_a_tenth": few,
    }


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    config = {"callers": sizes.num_callers, "limit": LIMIT, "burst": BURST, "request_tokens": REQUEST_TOKENS}
    report = Report("quota", config)
    for _ in range(1 if options.quick else options.repetitions):
        by_fleet = {number: asyncio.run(measure(number, sizes)) for number in FLEETS}
        for name in by_fleet[FLEETS[0]]:
            values = {number: by_fleet[number][name] for number in FLEETS}
            worst = min if name in HIGHER_IS_BETTER else max
            report.add(**{name: worst(values.values())}, **{f"{name}_{n}": value for n, value in values.items()})
    report.publish(options.json)


if __name__ == "__main__":
    main()
