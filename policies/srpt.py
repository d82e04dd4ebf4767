"""Shortest remaining work first, by prediction. Source: Schrage 1968; the predictor, the mean of a tenant's last five
outputs: Sheng et al. 2024 (OSDI), §5; the order from it: Fu et al. 2024 (learning to rank).

Remaining work is the tokens that are neither computed nor cached yet, and `output_cost` times the output that is
predicted to come. A tenant that has not ended a request yet is predicted by the mean over all tenants; an output longer
than predicted is expected to go on for as long as it has gone beyond. A request that has waited for `starvation_ms`
comes first, in order of arrival, and no longer gives way. A running sequence gives way, by swap, to a waiting one that
has `preempt_ratio` times less to do.

No bound on shares, and a tenant can split its work to look short: use it inside one tenant's engine. Waiting is bounded
by `starvation_ms` and the older requests that have starved too. A head that does not fit may be passed. O(log n) per
call; of tenants' outputs the latest `MAX_TENANTS` are remembered.
"""

import math
from collections import OrderedDict, abc, deque
from dataclasses import dataclass

from engine.core.costs import OUTPUT_COST
from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import NANOS_PER_MS, Nanos, TenantId
from policies import snapshots
from policies.options import at_least
from policies.waiting import first_not_passed, num_uncached_tokens

NUM_OUTPUTS = 5
MAX_TENANTS = 4_096


@dataclass(slots=True, eq=False)
class _Job:
    """What was predicted when the request came, in output tokens, and whether it starved since."""

    num_predicted: float
    starved: bool = False


class Srpt:
    """Requests by predicted remaining work, arrivals among equals.

    output_cost     of an output token, in prompt tokens, >= 0
    default_output  tokens predicted before any request has ended, >= 1
    preempt_ratio   by which a running sequence must have more to do to give way, >= 1
    starvation_ms   of waiting after which a request comes first, >= 0; 0 is never

    Raises ValueError, naming the option, where a value is out of range.
    """

    def __init__(
        self,
        *,
        output_cost: float = OUTPUT_COST,
        default_output: int = 256,
        preempt_ratio: float = 2.0,
        starvation_ms: float = 10_000.0,
    ) -> None:
        at_least(0, output_cost=output_cost, starvation_ms=starvation_ms)
        at_least(1, default_output=default_output, preempt_ratio=preempt_ratio)
        self._output_cost = output_cost
        self._preempt_ratio = preempt_ratio
        self._starvation_ns = starvation_ms * NANOS_PER_MS
        self._mean_output = float(default_output)
        self._outputs: OrderedDict[TenantId, deque[float]] = OrderedDict()  # the tenant that ended one last is last
        self._jobs: dict[int, _Job] = {}  # by arrival index, until they end
        self._waiting: Ranking[SequenceView] = Ranking()
        self._since: Ranking[SequenceView] = Ranking()  # by the time at which they began to wait

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        job = self._jobs.get(seq.arrival_index)
        if job is None:
            job = self._jobs[seq.arrival_index] = _Job(self._predict(seq))
        self._waiting.put(seq, self._rank(seq))
        if self._starvation_ns and not job.starved:
            self._since.put(seq, (now, seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self._waiting.discard(seq)
        self._since.discard(seq)
        if reason is LeaveReason.FINISHED:
            self._jobs.pop(seq.arrival_index, None)
            if seq.num_output_tokens:
                self._learn(seq.tenant_id, float(seq.num_output_tokens))

    def begin(self, start: PlanStart) -> Terms:
        starved_since = start.now - self._starvation_ns
        while (seq := self._since.first()) is not None and self._since.rank_of(seq)[0] <= starved_since:
            self._since.discard(seq)
            self._jobs[seq.arrival_index].starved = True
            self._waiting.put(seq, self._rank(seq))
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return first_not_passed(self._waiting, passed)

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        rank = self._waiting.rank_of(seq) if seq in self._waiting else self._rank(seq)
        return rank[:-1]

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        victim_starved, num_left = self.key(victim)
        claimant_starved, num_claimed = self.key(claimant)
        if victim_starved < 1:
            return Concession.NOTHING
        gives_way = claimant_starved < 1 or num_left > self._preempt_ratio * num_claimed
        return Concession.SWAP if gives_way else Concession.NOTHING

    def charge(self, service: Service) -> None:
        """What is left follows from what each sequence has computed and emitted."""

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        return ()

    def snapshot(self) -> bytes:
        outputs = {tenant_id: list(lengths) for tenant_id, lengths in self._outputs.items()}
        return snapshots.dump("srpt", outputs=outputs, order=list(outputs), mean=self._mean_output)

    def restore(self, snapshot: bytes) -> None:
        state = snapshots.load("srpt", snapshot)
        outputs, order = state.get("outputs"), state.get("order")
        if not isinstance(outputs, dict) or not isinstance(order, list) or set(map(str, order)) != set(outputs):
            raise ValueError("this is not a snapshot of srpt")
        self._mean_output = snapshots.finite("srpt", state.get("mean"))
        for tenant_id in map(TenantId, order):
            lengths = outputs[tenant_id]
            if not isinstance(lengths, list) or not lengths:
                raise ValueError("this is not a snapshot of srpt")
            self._outputs[tenant_id] = deque((snapshots.finite("srpt", n) for n in lengths), maxlen=NUM_OUTPUTS)

    def _predict(self, seq: SequenceView) -> float:
        outputs = self._outputs.get(seq.tenant_id)
        mean = self._mean_output if outputs is None else math.fsum(outputs) / len(outputs)
        return min(mean, float(seq.max_num_tokens - seq.num_prompt_tokens))

    def _learn(self, tenant_id: TenantId, num_output_tokens: float) -> None:
        self._mean_output += (num_output_tokens - self._mean_output) / NUM_OUTPUTS
        self._outputs.setdefault(tenant_id, deque(maxlen=NUM_OUTPUTS)).append(num_output_tokens)
        self._outputs.move_to_end(tenant_id)
        if len(self._outputs) > MAX_TENANTS:
            self._outputs.popitem(last=False)

    def _rank(self, seq: SequenceView) -> tuple[float, ...]:
        job = self._jobs.get(seq.arrival_index)  # None: it ran before this policy took over, or has ended
        num_predicted = self._predict(seq) if job is None else job.num_predicted
        if job is not None and job.starved:
            return (0.0, 0.0, seq.arrival_index)
        num_beyond = seq.num_output_tokens - num_predicted
        num_output = max(1.0, abs(num_beyond))
        num_left = num_uncached_tokens(seq) + self._output_cost * num_output
        return (1.0, num_left, seq.arrival_index)
