"""What Prometheus is told of the engine: its figures as metric families. Figures of moments, counters, and buckets.

Made at a scrape, from what the engine thread tells between two steps. Names no tenant, no request and no user.
"""

import time
from collections import abc
from itertools import product

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.stats import SchedulerStats
from engine.core.types import PauseReason, PreemptionMode
from engine.server import metric_names as names
from engine.server.fairness_window import FairnessWindow
from engine.server.figures import Figures
from engine.server.shares import has_work, shares
from engine.step_figures import Buckets

NS_PER_S = 1e9
# Beyond so much of its pool an engine has to move sequences; longer waits miss the objective of the first token.
FULL_POOL = 0.8
LONG_WAIT_S = 2.5
Labels = abc.Mapping[str, str]


class EngineMetrics:
    """Turns figures into families. One thread at a time."""

    def __init__(self, clock: abc.Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._window = FairnessWindow()

    def families(self, figures: Figures | None) -> list[Metric]:
        """Everything; None: the model is being loaded, the engine has failed, or it does not answer."""
        families = Families()
        families.gauge(names.METRIC_READY, "Whether requests are served.", figures is not None)
        if figures is None:
            return families.all
        add_process(families, figures)
        add_requests(families, figures)
        add_losses(families, figures)
        add_steps(families, figures)
        add_memory(families, figures)
        self._add_fairness(families, figures.stats.scheduler)
        return families.all

    def _add_fairness(self, families: "Families", stats: SchedulerStats) -> None:
        told = shares(stats.tenants)
        leads = [share.lead for tenant, share in zip(stats.tenants, told, strict=True) if has_work(tenant)]
        text = "The largest lead of a tenant with work over its least served sibling with work, in work by weight."
        families.gauge(names.METRIC_GAP, text, max(leads, default=0.0))
        if stats.gap_bound is not None:
            text = "By how much the policy lets siblings differ that are both denied something, in the same unit."
            families.gauge(names.METRIC_GAP_BOUND, text, stats.gap_bound)
        evenness = self._window.observe(stats.tenants, self._clock())
        text = "Jain's index of work by weight of the tenants that were denied something, last half minute; 1 is even."
        families.gauge(names.METRIC_JAIN_INDEX, text, evenness.jain_index)
        families.gauge(names.METRIC_BACKLOGGED, "How many tenants these were.", evenness.num_tenants)


class Families:
    """Metric families under construction, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Metric] = {}

    @property
    def all(self) -> list[Metric]:
        return list(self._by_name.values())

    def gauge(self, name: str, text: str, value: float, labels: Labels | None = None) -> None:
        """The gauge has one more sample. All samples of a name have the same labels."""
        family = self._by_name.setdefault(name, GaugeMetricFamily(name, text))
        family.add_sample(name, dict(labels or {}), float(value))

    def counter(self, name: str, text: str, value: float, labels: Labels | None = None) -> None:
        """The counter has one more sample."""
        family = self._by_name.setdefault(name, CounterMetricFamily(name, text))
        family.add_sample(f"{name}_total", dict(labels or {}), float(value))

    def histogram(self, name: str, text: str, buckets: Buckets) -> None:
        """The histogram, which has no label."""
        number, cumulative = 0, []
        for bound, count in zip((*map(str, buckets.bounds), "+Inf"), buckets.counts, strict=True):
            number += count
            cumulative.append((bound, float(number)))
        self._by_name[name] = HistogramMetricFamily(name, text, buckets=cumulative, sum_value=buckets.total)


def add_process(families: Families, figures: Figures) -> None:
    """What is served, and how."""
    engine, stats = figures.engine, figures.stats.scheduler
    labels = {
        "model": engine.model.name,
        "scheduling_policy": engine.scheduling_policy,
        "preemption_policy": engine.preemption_policy,
    }
    families.gauge(names.METRIC_INFO, "1; the labels name model and policies.", 1, labels)
    families.gauge(names.METRIC_UPTIME, "Time since the engine began.", figures.stats.uptime_s)
    families.gauge(names.METRIC_DRAINING, "Whether no request is taken any more.", figures.is_draining)
    text = "Whether a policy failed and was replaced by the order of arrival."
    families.gauge(names.METRIC_POLICY_FAULT, text, stats.policy_fault is not None)


def add_requests(families: Families, figures: Figures) -> None:
    """For how many it is served, and how long a newcomer would wait."""
    stats = figures.stats.scheduler
    states = {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "paused": stats.num_paused,
        "swapped": stats.num_swapped,
        "swapping": stats.num_swapping,
    }
    for state, number in states.items():
        families.gauge(names.METRIC_REQUESTS, "Unfinished requests by state.", number, {"state": state})
    families.counter(names.METRIC_FINISHED, "Requests that have ended, whatever the reason.", figures.num_finished)
    if figures.new_request_wait_ns is not None:
        text = "What a request that comes now may wait before its first step, by the pace of late."
        families.gauge(names.METRIC_NEW_REQUEST_WAIT, text, figures.new_request_wait_ns / NS_PER_S)
    text = "How full it is: the most of rows, KV blocks and the wait of a newcomer, 1 is as full as it should be."
    families.gauge(names.METRIC_SATURATION, text, saturation(figures))


def saturation(figures: Figures) -> float:
    """By what an autoscaler goes: not cut off at 1, so that it tells how many engines are wanted."""
    stats, config = figures.stats.scheduler, figures.engine.config
    num_used = config.num_device_blocks - stats.num_free_blocks
    wait_s = (figures.new_request_wait_ns or 0) / NS_PER_S
    return max(
        stats.num_running / config.max_num_seqs,
        num_used / (FULL_POOL * config.num_device_blocks),
        wait_s / LONG_WAIT_S,
    )


def add_losses(families: Families, figures: Figures) -> None:
    """What was told to nobody yet, and never will be."""
    text = "Ended requests whose usage no ledger has acknowledged."
    families.gauge(names.METRIC_USAGE_WAITING, text, figures.usage.num_waiting)
    text = "Ended requests whose usage was forgotten before a ledger had it."
    families.counter(names.METRIC_USAGE_DROPPED, text, figures.usage.num_dropped)
    if figures.num_dropped_spans is not None:
        text = "Spans that no collector has got, and none will."
        families.counter(names.METRIC_DROPPED_SPANS, text, figures.num_dropped_spans)


def add_steps(families: Families, figures: Figures) -> None:
    """What steps take, hold and yield."""
    steps, stats, config = figures.stats.steps, figures.stats.scheduler, figures.engine.config
    families.histogram(names.METRIC_STEP, "Time of a step.", steps.seconds)
    families.histogram(names.METRIC_STEP_SEQUENCES, "Sequences in a step: the batch size.", steps.sequences)
    families.histogram(names.METRIC_STEP_TOKENS, "Tokens computed in a step.", steps.tokens)
    for of, number in {"sequences": config.max_num_seqs, "tokens": config.max_num_batched_tokens}.items():
        families.gauge(names.METRIC_STEP_LIMIT, "What a step may hold at most.", number, {"of": of})
    totals = stats.totals
    kinds = {
        "prefill": totals.num_prefill_tokens,
        "output": totals.num_output_tokens,
        "recomputed": totals.num_recomputed_tokens,
        "borrowed": totals.num_borrowed_tokens,
        "cached": totals.num_found_tokens,
    }
    text = "Tokens by kind; recomputed ones are lost work, borrowed ones are among prefill and output, cached in none."
    for kind, number in kinds.items():
        families.counter(names.METRIC_TOKENS, text, number, {"kind": kind})
    results = {
        "accepted": totals.num_accepted_tokens,
        "rejected": totals.num_drafted_tokens - totals.num_accepted_tokens,
    }
    for result, number in results.items():
        text = "Draft tokens that were verified; accepted ones are among the output tokens."
        families.counter(names.METRIC_DRAFTS, text, number, {"result": result})
    for of, price_ns in _prices(stats.prices).items():
        text = "What a step and a copy take, by measurement."
        families.gauge(names.METRIC_PRICE, text, price_ns / NS_PER_S, {"of": of})


def add_memory(families: Families, figures: Figures) -> None:
    """The pools, and what moved between them."""
    stats, config = figures.stats.scheduler, figures.engine.config
    for (pool, state), number in _blocks(stats, config).items():
        text = (
            "KV blocks by pool and state: cached ones make room when it is needed, fenced ones when a copy has ended."
        )
        families.gauge(names.METRIC_BLOCKS, text, number, {"pool": pool, "state": state})
    reasons = [reason for reason in PauseReason if reason is not PauseReason.SIBLINGS]  # which nobody is told of
    for mode, reason in product(PreemptionMode, reasons):  # those that never were, too: a rate needs their zero
        labels, number = {"mode": mode.value, "reason": reason.value}, figures.preemptions.get((mode, reason), 0)
        families.counter(names.METRIC_PREEMPTIONS, "Times that a request gave way, by how and why.", number, labels)
    text = "Steps that came to nothing because the device had no memory left for them."
    families.counter(names.METRIC_LOST_STEPS, text, stats.num_lost_steps)
    text = "Times that a request of such a step was sent back to be computed again; among the preemptions."
    families.counter(names.METRIC_REQUEUES, text, stats.num_requeues)
    text = "Cached blocks that made room for others."
    families.counter(names.METRIC_EVICTED, text, stats.cache.num_evicted)
    block_bytes = config.block_size * figures.engine.model.kv_bytes_per_token
    for direction, num_blocks in {"out": stats.num_copied_out, "in": stats.num_copied_in}.items():
        text = "KV cache whose copy to the host (out) or from there (in) has begun."
        families.counter(names.METRIC_SWAPPED, text, num_blocks * block_bytes, {"direction": direction})


def _blocks(stats: SchedulerStats, config: SchedulerConfig) -> dict[tuple[str, str], int]:
    used = config.num_device_blocks - stats.num_free_blocks - stats.num_fenced_blocks
    return {
        ("device", "free"): stats.num_free_blocks - stats.cache.num_kept,
        ("device", "cached"): stats.cache.num_kept,
        ("device", "used"): used,
        ("device", "fenced"): stats.num_fenced_blocks,
        ("host", "free"): stats.num_free_host_blocks - stats.cache.num_kept_on_host,
        ("host", "cached"): stats.cache.num_kept_on_host,
        ("host", "used"): config.num_host_blocks - stats.num_free_host_blocks,
    }


def _prices(prices: Prices) -> dict[str, float]:
    step = prices.step
    return {
        "copy_out_block": prices.copy_out_block_ns,
        "copy_in_block": prices.copy_in_block_ns,
        "copy_launch": prices.copy_launch_ns,
        "step": step.base_ns,
        "prefill_token": step.prefill_token_ns,
        "prefill_key": step.prefill_key_ns,
        "decode": step.decode_ns,
        "decode_key": step.decode_key_ns,
        "copied_block": step.copied_block_ns,
    }
