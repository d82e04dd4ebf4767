"""What the simulator tells while it runs, kept in memory that grows with tenants and open requests only.

An event costs about a microsecond: it is counted and appended; percentiles, gaps and shares are made at the end, by
`summary`.
"""

from collections import defaultdict

from engine.core.events import Usage
from engine.core.plan import CopyDirection
from engine.core.types import NANOS_PER_MS, FinishReason, PauseReason, PreemptionMode
from engine.sim.metrics.accounts import IN, OUT, BacklogLog, LatencySamples, OpenRequest, RunCounts, TenantAccount
from engine.sim.metrics.options import RecorderOptions
from engine.sim.metrics.outcome import Outcome
from engine.sim.metrics.samples import Samples
from engine.sim.metrics.step_gaps import StepGaps
from engine.sim.metrics.summary import Records, summarize
from engine.sim.metrics.windows import WindowTable
from engine.sim.traffic.row import Arrival

DEFAULT_OPTIONS = RecorderOptions()
ENDED_BY_ITSELF = (FinishReason.STOP, FinishReason.LENGTH)
DENIED_FOR_OTHERS = (PauseReason.FAIRNESS, PauseReason.KV_PRESSURE)


class Recorder:
    """Fed by the simulator. Times are of the virtual clock. Calls need the order of time for each request only, so that
    several engines may run ahead of one another; `engine` numbers them."""

    def __init__(self, options: RecorderOptions = DEFAULT_OPTIONS) -> None:
        self._options = options
        self._prefill_cost, self._output_cost = options.prefill_cost, options.output_cost
        self._limits_ns = [(ttft * NANOS_PER_MS, tpot * NANOS_PER_MS) for ttft, tpot in options.goodput_limits_ms]
        self._accounts: dict[str, TenantAccount] = {}
        self._open: dict[str, OpenRequest] = {}
        self._counts = RunCounts()
        self._backlog = BacklogLog()
        self._served, self._requested, self._copied = (WindowTable(options.window_ns) for _ in range(3))
        self._latencies, self._steps = LatencySamples(), Samples()
        self._step_gaps: defaultdict[int, StepGaps] = defaultdict(StepGaps)

    def on_arrival(self, arrival: Arrival, request_id: str, now: int) -> None:
        """A request arrived. Told for every request, also for one that is then refused."""
        account = self._accounts.get(arrival.tenant) or self._new_account(arrival.tenant)
        work = arrival.num_prompt_tokens * self._prefill_cost + arrival.num_output_tokens * self._output_cost
        account.num_requests += 1
        account.requested_work += work
        self._requested.add(now, account.index, work)
        counts = self._counts
        counts.num_requests += 1
        if counts.first_arrival_ns is None:
            counts.first_arrival_ns = now
        if now > counts.last_arrival_ns:
            counts.last_arrival_ns = now
        request = OpenRequest(account, arrival.at_ns, arrival.at_ns >= self._options.warm_up_ns, now)
        self._open[request_id] = request
        self._begin_denial(account, now)

    def on_refused(self, request_id: str, reason: str, now: int) -> None:
        """It was not accepted: the end of it."""
        request = self._open.pop(request_id)
        request.tenant.num_refused += 1
        self._counts.refused_by_reason[reason] += 1
        self._end_denial(request, now)

    def on_admitted(self, request_id: str, now: int, engine: int = 0) -> None:
        """Its first tokens were planned."""
        request = self._open[request_id]
        request.is_admitted = True
        request.engine = engine
        self._end_denial(request, now)

    def on_first_token(self, request_id: str, now: int) -> None:
        """It emitted its first token."""
        request = self._open[request_id]
        if not request.is_admitted:
            request.is_admitted = True
            self._end_denial(request, now)
        request.first_token_ns = now
        request.gap_since = None
        if request.is_measured:
            self._latencies.ttft.add(request.tenant.index, now - request.at_ns)

    def on_token(self, request_id: str, now: int) -> None:
        """It emitted a token. Needed for the first one after each resumption only."""
        request = self._open[request_id]
        if request.gap_since is not None:
            request.longest_gap_ns = max(request.longest_gap_ns, now - request.gap_since)
            request.gap_since = None

    def on_tokens(
        self, tenant: str, prefill: int, output: int, borrowed: float, now: int, since: int | None = None
    ) -> None:
        """A tenant was served in a step that ended at `now`: prompt tokens computed for the first time, tokens emitted,
        and the part of that work that was borrowed. A leap over several steps gives its start as `since`: the work is
        spread evenly over it."""
        account = self._accounts.get(tenant) or self._new_account(tenant)
        work = prefill * self._prefill_cost + output * self._output_cost
        account.num_prefill_tokens += prefill
        account.num_output_tokens += output
        if borrowed:
            account.borrowed_work += borrowed
        begin = now if since is None else since
        if account.window_start <= begin and now < account.window_end:
            account.window_work += work
        else:
            self._serve(account, work, begin, now)

    def on_preempted(self, request_id: str, mode: PreemptionMode, reason: PauseReason, now: int) -> None:
        """It gets no tokens until it is resumed."""
        request, counts = self._open[request_id], self._counts
        counts.preemptions_by_mode[mode.value] += 1
        counts.preemptions_by_reason[reason.value] += 1
        request.tenant.num_preemptions += 1
        if mode is not PreemptionMode.PAUSE:
            counts.num_preempted_requests += not request.num_losses
            request.num_losses += 1
            counts.max_preemptions = max(counts.max_preemptions, request.num_losses)
        if request.first_token_ns is not None and request.gap_since is None:
            request.gap_since = now
        if reason in DENIED_FOR_OTHERS and request.denied_since is None:
            request.denied_since = now
            self._begin_denial(request.tenant, now)

    def on_resumed(self, request_id: str, now: int) -> None:
        """It is computed again."""
        request = self._open[request_id]
        self._end_denial(request, now)
        if request.gap_since is not None:
            request.longest_gap_ns = max(request.longest_gap_ns, now - request.gap_since)

    def on_copy(self, num_blocks: int, direction: CopyDirection, now: int) -> None:
        """A copy between the pools began."""
        self._counts.num_copies += 1
        self._copied.add(now, OUT if direction is CopyDirection.OUT else IN, num_blocks)

    def on_step(self, step_ns: int, now: int, engine: int = 0, num_steps: int = 1) -> None:
        """`num_steps` steps of `step_ns` each ended, the last of them at `now`."""
        self._counts.num_steps += num_steps
        self._counts.busy_ns += step_ns * num_steps
        self._steps.add(0, step_ns, num_steps)
        self._step_gaps[engine].add(now, step_ns)

    def on_finish(self, request_id: str, reason: FinishReason, usage: Usage, now: int) -> None:
        """It ended; by itself with its last token at `now`."""
        request = self._open.pop(request_id)
        account, counts = request.tenant, self._counts
        counts.finished_by_reason[reason.value] += 1
        counts.last_finish_ns = max(counts.last_finish_ns, now)
        account.num_recomputed_tokens += usage.num_recomputed_tokens
        account.num_cached_tokens += usage.num_cached_prompt_tokens
        self._end_denial(request, now)
        if reason in ENDED_BY_ITSELF:
            account.num_finished += 1
            self._measure(request, usage.num_output_tokens, now)

    def result(self, now: int) -> Outcome:
        """Everything told so far. Requests that are still open count as unfinished, with their age as a lower bound of
        the time to their first token. Called once, at the end."""
        num_unfinished = len(self._open)
        for request in list(self._open.values()):
            if request.is_measured and request.first_token_ns is None:
                self._latencies.ttft.add(request.tenant.index, now - request.at_ns)
            self._end_denial(request, now)
        for account in self._accounts.values():
            self._close_backlog(account)
            self._served.add(account.window_start, account.index, account.window_work)
            account.window_work = 0.0
        counts = self._counts
        if num_unfinished:
            counts.last_finish_ns = max(counts.last_finish_ns, now)
        return summarize(
            Records(
                options=self._options,
                accounts=list(self._accounts.values()),
                counts=counts,
                num_unfinished=num_unfinished,
                backlog=self._backlog,
                served=self._served,
                requested=self._requested,
                copied=self._copied,
                latencies=self._latencies,
                steps=self._steps,
            )
        )

    def _measure(self, request: OpenRequest, num_output_tokens: int, now: int) -> None:
        """Adds the durations of a request that ended by itself."""
        first, account = request.first_token_ns, request.tenant
        if first is None or not request.is_measured:
            return
        self._latencies.completion.add(account.index, now - request.at_ns)
        tpot = 0
        if num_output_tokens > 1:
            tpot = (now - first) // (num_output_tokens - 1)
            self._latencies.tpot.add(account.index, tpot)
            longest_step = self._step_gaps[request.engine].longest_after(first)
            self._latencies.max_itl.add(account.index, max(request.longest_gap_ns, longest_step))
        for place, (ttft_limit, tpot_limit) in enumerate(self._limits_ns):
            if first - request.at_ns <= ttft_limit and tpot <= tpot_limit:
                account.num_goodput[place] += 1

    def _serve(self, account: TenantAccount, work: float, begin: int, now: int) -> None:
        """Writes down what was served in the account's window, and begins a new one at `now`."""
        served = self._served
        if account.window_work:
            served.add(account.window_start, account.index, account.window_work)
        width = served.window_ns
        account.window_start = now // width * width
        account.window_end = account.window_start + width
        if begin >= account.window_start:
            account.window_work = work
        else:
            account.window_work = 0.0
            served.spread(begin, now, account.index, work)

    def _new_account(self, tenant: str) -> TenantAccount:
        account = TenantAccount(len(self._accounts), tenant, [0] * len(self._limits_ns))
        self._accounts[tenant] = account
        return account

    def _begin_denial(self, account: TenantAccount, now: int) -> None:
        """One more request of the tenant could use what it does not get."""
        account.num_denied += 1
        if account.num_denied == 1 and account.backlog_ended_at != now:
            self._close_backlog(account)
            account.backlogged_since = now

    def _end_denial(self, request: OpenRequest, now: int) -> None:
        """The request waits no longer, where it did."""
        if request.denied_since is None:
            return
        account = request.tenant
        account.longest_wait_ns = max(account.longest_wait_ns, now - request.denied_since)
        request.denied_since = None
        account.num_denied -= 1
        if not account.num_denied:
            account.backlog_ended_at = now

    def _close_backlog(self, account: TenantAccount) -> None:
        """Logs the tenant's last interval, unless it is too short to cover a window."""
        if account.backlog_ended_at - account.backlogged_since >= self._served.window_ns:
            self._backlog.add(account.index, account.backlogged_since, account.backlog_ended_at)
        account.backlog_ended_at = -1
