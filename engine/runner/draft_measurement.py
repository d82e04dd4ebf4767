"""What proposing a draft token takes, measured before the first request."""

import time
from dataclasses import replace

from engine.core.config import SchedulerConfig
from engine.core.plan import StepPlan
from engine.runner.measurement import decodes
from engine.runner.model_runner import ModelRunner

CONTEXT = 16
REPETITIONS = 3


def measure_draft_ns(runner: ModelRunner, config: SchedulerConfig) -> float:
    """Nanoseconds for each draft token of one sequence: the difference of a step with and without proposals.

    Call it like `measure`, which see.
    """
    longest = config.max_request_tokens - config.num_draft_tokens - 1
    if longest < 1 or not config.num_draft_tokens:
        return 0.0
    plan = decodes(config, 1, min(CONTEXT, longest))
    runner.execute(plan)
    without = replace(plan, started=())
    with_drafts = replace(without, draft_limits=(config.num_draft_tokens,))
    runner.execute(with_drafts)  # the first time computes the context
    added_ns = min(_elapsed_ns(runner, with_drafts) - _elapsed_ns(runner, without) for _ in range(REPETITIONS))
    return max(0.0, added_ns / config.num_draft_tokens)


def _elapsed_ns(runner: ModelRunner, plan: StepPlan) -> int:
    started_at = time.perf_counter_ns()
    runner.execute(plan)
    return time.perf_counter_ns() - started_at
