"""Open and closed loops of calls, and how a process that makes them is told what to do. Standard library only.

A job is one line of JSON on stdin, its result one line on stdout. Open loop: calls begin at random times of a fixed
seed, whether or not earlier ones have ended, and latencies count from the time at which a call was to begin. Closed
loop: so many callers ask again as soon as they are answered.
"""

import asyncio
import gc
import json
import random
import resource
import sys
import time
from collections import abc
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

SEED = 20
MIN_P99_SAMPLES = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """When the first text came, on the monotonic clock, and how many tokens in all."""

    first_s: float
    num_tokens: int


Ask = abc.Callable[[], abc.Awaitable[Answer]]


@dataclass
class Tally:
    """What was measured, in seconds. Calls that were to begin before `begins_s` are warm-up and count nowhere."""

    begins_s: float
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    num_calls: int = 0
    num_tokens: int = 0
    ended_s: float = 0.0
    is_over: bool = False

    async def take(self, ask: Ask, intended_s: float) -> None:
        """One call. Whatever it raises ends the run."""
        answer = await ask()
        now_s = time.monotonic()
        if intended_s >= self.begins_s:
            self.first_s.append(answer.first_s - intended_s)
            self.whole_s.append(now_s - intended_s)
        if now_s >= self.begins_s and not self.is_over:
            self.num_calls += 1
            self.num_tokens += answer.num_tokens
            self.ended_s = now_s


async def open_loop(ask: Ask, rate: float, warm_s: float, duration_s: float) -> Tally:
    """`rate` calls per second on average, at the same moments in every run."""
    draw = random.Random(SEED)
    intended_s = time.monotonic()
    ends_s = intended_s + warm_s + duration_s
    tally = Tally(intended_s + warm_s)
    async with asyncio.TaskGroup() as group:
        while (intended_s := intended_s + draw.expovariate(rate)) < ends_s:
            await asyncio.sleep(intended_s - time.monotonic())
            group.create_task(tally.take(ask, intended_s))
    return tally


async def closed_loop(ask: Ask, num_callers: int, warm_s: float, duration_s: float, min_samples: int) -> Tally:
    """At least `duration_s` and `min_samples` calls that count."""
    now_s = time.monotonic()
    tally = Tally(now_s + warm_s)

    async def call() -> None:
        while time.monotonic() < tally.begins_s + duration_s or len(tally.whole_s) < min_samples:
            await tally.take(ask, time.monotonic())
        tally.is_over = True  # from here on fewer callers ask

    async with asyncio.TaskGroup() as group:
        for _ in range(num_callers):
            group.create_task(call())
    return tally


def quantile(values: list[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def run_job(job: dict, ask: Ask) -> dict[str, float]:
    """Latencies in ms, rates per second; `client_cpu` is the share of one core that this process used."""
    gc.collect()
    cpu_s, began_s = time.process_time(), time.monotonic()
    if job["rate"]:
        tally = await open_loop(ask, job["rate"], job["warm_s"], job["duration_s"])
    else:
        tally = await closed_loop(ask, job["callers"], job["warm_s"], job["duration_s"], job["min_samples"])
    spent_s, took_s = time.monotonic() - began_s, tally.ended_s - tally.begins_s
    latencies = {"first": tally.first_s, "whole": tally.whole_s}
    return {
        **{f"{kind}_p50_ms": 1e3 * quantile(values, 0.5) for kind, values in latencies.items()},
        **{f"{kind}_p99_ms": 1e3 * quantile(values, 0.99) for kind, values in latencies.items()},
        "samples": len(tally.whole_s),
        "calls_per_second": tally.num_calls / took_s,
        "tokens_per_second": tally.num_tokens / took_s,
        "client_cpu": (time.process_time() - cpu_s) / spent_s,
        "client_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def serve_jobs(asker: abc.Callable[[dict], AbstractAsyncContextManager[Ask]]) -> None:
    """Answer the jobs on stdin until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = json.loads(line)
        async with asker(job) as ask:
            print(json.dumps(await run_job(job, ask)), flush=True)
