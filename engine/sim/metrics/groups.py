"""Groups of tenants: everyone, the light, the heavy, and those between. One percentile over all hides who pays."""

from collections import abc
from functools import cached_property

import numpy as np
import numpy.typing as npt

from engine.sim.metrics.accounts import LatencySamples, TenantAccount
from engine.sim.metrics.options import RecorderOptions
from engine.sim.metrics.outcome import Goodput, GroupOutcome, Latencies, Percentiles
from engine.sim.metrics.samples import Distribution
from engine.sim.traffic.row import NANOS_PER_S

LIGHT_SHARE = 0.02  # of the requested work; Sheng et al.'s run has 14 of 27 such clients
NUM_HEAVY = 3

Mask = npt.NDArray[np.bool_]


class Groups:
    """Who belongs to which group, and what each was like."""

    def __init__(
        self,
        accounts: abc.Sequence[TenantAccount],
        latencies: LatencySamples,
        share_ratios: npt.NDArray[np.float64],
        options: RecorderOptions,
    ) -> None:
        self._accounts = accounts
        self._latencies = latencies
        self._ratios = share_ratios
        self._options = options
        self.by_work = sorted(accounts, key=lambda account: (-account.requested_work, account.path))

    @cached_property
    def members(self) -> dict[str, list[TenantAccount]]:
        """The accounts of each group that has any."""
        total = sum(account.requested_work for account in self._accounts)
        light = [account for account in self.by_work if account.requested_work < LIGHT_SHARE * total]
        others = self.by_work[: len(self.by_work) - len(light)]
        groups = {"all": self.by_work, "light": light, "heavy": others[:NUM_HEAVY], "middle": others[NUM_HEAVY:]}
        return {name: members for name, members in groups.items() if members}

    def ttft(self, members: abc.Iterable[TenantAccount]) -> Distribution:
        """Of those tenants together."""
        return self._latencies.ttft.of(self._mask(members))

    def outcomes(self) -> tuple[GroupOutcome, ...]:
        """Of each group that has members, everyone first."""
        return tuple(self._outcome(name, members) for name, members in self.members.items())

    def of_tenant(self, account: TenantAccount) -> GroupOutcome:
        """Of one."""
        return self._outcome(account.path, [account])

    def _work_of(self, members: abc.Iterable[TenantAccount]) -> float:
        return sum(self._options.work_of(account.num_prefill_tokens, account.num_output_tokens) for account in members)

    def _mask(self, members: abc.Iterable[TenantAccount]) -> Mask:
        mask = np.zeros(len(self._accounts), dtype=bool)
        mask[[account.index for account in members]] = True
        return mask

    def _outcome(self, name: str, members: abc.Sequence[TenantAccount]) -> GroupOutcome:
        mask = self._mask(members)
        ratios = self._ratios[mask & ~np.isnan(self._ratios)]
        num_requests = sum(account.num_requests for account in members)
        return GroupOutcome(
            name=name,
            num_tenants=len(members),
            num_requests=num_requests,
            num_refused=sum(account.num_refused for account in members),
            num_finished=sum(account.num_finished for account in members),
            requested_work=sum(account.requested_work for account in members),
            served_work=self._work_of(members),
            borrowed_work=sum(account.borrowed_work for account in members),
            num_prefill_tokens=sum(account.num_prefill_tokens for account in members),
            num_output_tokens=sum(account.num_output_tokens for account in members),
            num_recomputed_tokens=sum(account.num_recomputed_tokens for account in members),
            num_cached_tokens=sum(account.num_cached_tokens for account in members),
            num_preemptions=sum(account.num_preemptions for account in members),
            share_ratio=float(ratios.min()) if len(ratios) else None,
            starvation_age_s=max(account.longest_wait_ns for account in members) / NANOS_PER_S,
            latencies=self._latencies_of(mask),
            goodput=self._goodput_of(members, num_requests) if num_requests else (),
        )

    def _latencies_of(self, mask: Mask) -> Latencies:
        return Latencies(
            ttft=percentiles_of(self._latencies.ttft.of(mask)),
            tpot=percentiles_of(self._latencies.tpot.of(mask)),
            completion=percentiles_of(self._latencies.completion.of(mask)),
            max_itl=percentiles_of(self._latencies.max_itl.of(mask)),
        )

    def _goodput_of(self, members: abc.Sequence[TenantAccount], num_requests: int) -> tuple[Goodput, ...]:
        return tuple(
            Goodput(ttft, tpot, sum(account.num_goodput[place] for account in members) / num_requests)
            for place, (ttft, tpot) in enumerate(self._options.goodput_limits_ms)
        )


def percentiles_of(distribution: Distribution) -> Percentiles:
    """In seconds."""
    p50, p90, p99, longest = (_seconds(distribution.percentile(percent)) for percent in (50, 90, 99, 100))
    return Percentiles(distribution.num_samples, p50, p90, p99, longest, _seconds(distribution.mean()))


def _seconds(nanos: float | None) -> float | None:
    return None if nanos is None else nanos / NANOS_PER_S
