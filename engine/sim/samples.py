"""Every request and every charge of a run, kept: for suites and comparisons of a size that fits into memory.

`Recorder` is for runs of any length; here nothing is summed up before it is asked for, so that any figure can be taken.
"""

import math
from bisect import bisect_right
from collections import abc
from dataclasses import dataclass, field

from engine.core.events import Usage
from engine.core.plan import CopyDirection
from engine.core.types import FinishReason, PauseReason, PreemptionMode
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.work import work_of


@dataclass(slots=True)
class Sample:
    """One request. Times in nanoseconds, None where it has not come so far. Written by Samples."""

    arrival: Arrival
    first_token_at: int | None = None
    ended_at: int | None = None
    reason: FinishReason | None = None
    usage: Usage | None = None
    num_pauses: int = 0
    last_progress_at: int = 0
    longest_silence_ns: int = 0

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at is None else (self.first_token_at - self.arrival.at_ns) / NANOS_PER_S

    @property
    def latency_s(self) -> float | None:
        return None if self.ended_at is None else (self.ended_at - self.arrival.at_ns) / NANOS_PER_S


@dataclass(slots=True)
class Served:
    """What one tenant was served by each moment: `work[i]` cost units up to `times[i]`. Written by Samples."""

    times: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=list)

    def add(self, now: int, work: float) -> None:
        total = self.work[-1] + work if self.work else work
        if self.times and self.times[-1] == now:
            self.work[-1] = total
        else:
            self.times.append(now)
            self.work.append(total)

    def until(self, now: int) -> float:
        """Cost units up to that moment, its own included."""
        index = bisect_right(self.times, now)
        return self.work[index - 1] if index else 0.0


class Samples:
    """What a world tells, as it was told."""

    def __init__(self) -> None:
        self.by_id: dict[str, Sample] = {}
        self.served: dict[str, Served] = {}
        self.refusals: dict[str, str] = {}
        self.step_ends: list[int] = []
        self.step_ns: list[int] = []
        self.num_output_tokens = 0
        self.num_prefill_tokens = 0
        self.num_copied_blocks = 0
        self.borrowed_work = 0.0

    def on_arrival(self, arrival: Arrival, request_id: str, now: int) -> None:
        self.by_id[request_id] = Sample(arrival, last_progress_at=now)

    def on_refused(self, request_id: str, reason: str, now: int) -> None:
        self.refusals[request_id] = reason

    def on_admitted(self, request_id: str, now: int, engine: int = 0) -> None:
        self._progress(self.by_id[request_id], now)

    def on_first_token(self, request_id: str, now: int) -> None:
        sample = self.by_id[request_id]
        sample.first_token_at = now
        self._progress(sample, now)

    def on_token(self, request_id: str, now: int) -> None:
        self._progress(self.by_id[request_id], now)

    def on_tokens(
        self, tenant: str, prefill: int, output: int, borrowed: float, now: int, since: int | None = None
    ) -> None:
        self.num_prefill_tokens += prefill
        self.num_output_tokens += output
        self.borrowed_work += borrowed
        served = self.served.get(tenant)
        if served is None:
            served = self.served[tenant] = Served()
        served.add(now, work_of(prefill, output))

    def on_preempted(self, request_id: str, mode: PreemptionMode, reason: PauseReason, now: int) -> None:
        sample = self.by_id[request_id]
        sample.num_pauses += 1
        sample.last_progress_at = now  # it was computed up to this plan

    def on_resumed(self, request_id: str, now: int) -> None:
        self._progress(self.by_id[request_id], now)

    def on_copy(self, num_blocks: int, direction: CopyDirection, now: int) -> None:
        self.num_copied_blocks += num_blocks

    def on_step(self, step_ns: int, now: int, engine: int = 0, num_steps: int = 1) -> None:
        self.step_ends.append(now)
        self.step_ns.append(step_ns)

    def on_finish(self, request_id: str, reason: FinishReason, usage: Usage, now: int) -> None:
        sample = self.by_id[request_id]
        sample.ended_at, sample.reason, sample.usage = now, reason, usage

    def of(self, *tenants: str, since_s: float = 0.0, until_s: float = math.inf) -> list[Sample]:
        """The requests of these tenants (of all, if none is named) that arrived in [since_s, until_s)."""
        wanted = frozenset(tenants)
        return [
            sample
            for sample in self.by_id.values()
            if (not wanted or sample.arrival.tenant in wanted)
            and since_s <= sample.arrival.at_ns / NANOS_PER_S < until_s
        ]

    def work(self, tenant: str, since_s: float, until_s: float) -> float:
        """Cost units that the tenant was served in (since_s, until_s]."""
        served = self.served.get(tenant)
        if served is None:
            return 0.0
        return served.until(round(until_s * NANOS_PER_S)) - served.until(round(since_s * NANOS_PER_S))

    def step_p99_s(self) -> float:
        return percentile([ns / NANOS_PER_S for ns in self.step_ns], 0.99)

    def _progress(self, sample: Sample, now: int) -> None:
        sample.longest_silence_ns = max(sample.longest_silence_ns, now - sample.last_progress_at)
        sample.last_progress_at = now


def ttfts_s(samples: abc.Iterable[Sample], end_s: float) -> list[float]:
    """Times to first token; of requests that had none by `end_s`, their age then, which is a lower bound."""
    return [end_s - sample.arrival.at_ns / NANOS_PER_S if (t := sample.ttft_s) is None else t for sample in samples]


def percentile(values: abc.Iterable[float], share: float) -> float:
    """Nearest rank; NaN where there are no values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def windowed_gap(
    samples: Samples,
    weights: abc.Mapping[str, float],
    window_s: float,
    span_s: tuple[float, float],
    step_s: float = 1.0,
) -> float:
    """The largest gap of work over weight between two tenants in any window of the span, over the window's fair share.

    Means something only while all of these tenants are backlogged.
    """
    worst = 0.0
    begin, end = span_s
    for index in range(math.floor((end - begin - window_s) / step_s + 1e-9) + 1):
        since = begin + index * step_s
        work = {tenant: samples.work(tenant, since, since + window_s) for tenant in weights}
        fair_share = sum(work.values()) / sum(weights.values())
        per_weight = [work[tenant] / weight for tenant, weight in weights.items()]
        if fair_share:
            worst = max(worst, (max(per_weight) - min(per_weight)) / fair_share)
    return worst
