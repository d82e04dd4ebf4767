"""Beam searches in a decision log: a replay makes the same forks, and no token can be read from it."""

import io
import json
import random

import pytest

from engine.core.types import FinishReason, Nanos
from engine.sim.errors import ReplayError
from engine.sim.replay import replay
from tests.builders import make_request
from tests.core.searching import expected_hypotheses, make_search
from tests.fakes import ReferenceRunner
from tests.sim.test_decision_log import recorded

LIMITS = {"block_size": 4, "num_device_blocks": 36, "num_host_blocks": 12, "max_num_seqs": 6}


def log_of_searches(seed: int, num_steps: int = 160, **fields) -> list[str]:
    """The log of searches in a small pool, some of whose prompts go on with what another one has found."""
    source, file = random.Random(seed), io.StringIO()
    scheduler, _ = recorded(file, source.choice(["fcfs", "fair"]), growth_reserve_tokens=0, **(LIMITS | fields))
    runner, searches, turns = ReferenceRunner(4), [], []
    for step in range(num_steps):
        now = 100 * step
        if source.random() < 0.2:
            prompt = [source.randrange(97) for _ in range(source.randrange(4, 14))]
            if turns and source.random() < 0.5:
                last = turns.pop(source.randrange(len(turns)))  # of two answers nobody knows where they part
                prompt = [*last.prompt_token_ids, *expected_hypotheses(last)[0][1]][:20]
            request = make_search(
                f"g{step}",
                width=source.randrange(2, 5),
                tenant=source.choice("ab"),
                prompt=prompt,
                max_output_tokens=source.randrange(1, 12),
                stop_token_ids=frozenset(source.sample(range(97), 6)),
                arrived_at=Nanos(now),
            )
            searches.append(request)
            turns.append(request)
            scheduler.add(request, Nanos(now))
            scheduler.add(make_request(f"p{step}", tenant="b", prompt=5), Nanos(now))
        if searches and source.random() < 0.03:
            scheduler.abort(source.choice(searches).generation_id, FinishReason.CANCELLED, Nanos(now))
        plan = scheduler.plan(Nanos(now + 1))
        if plan is not None:
            scheduler.commit(runner.execute(plan), Nanos(now + 50))
    return file.getvalue().splitlines()


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_replay_makes_the_same_forks(seed: int, prefix_caching: bool):
    lines = log_of_searches(seed, enable_prefix_caching=prefix_caching)

    report = replay(lines)

    assert report.is_identical
    assert report.num_plans == report.num_equal > 50
    assert sum("candidates" in line for line in lines) > 20


def test_the_log_names_no_token():
    lines = [json.loads(line) for line in log_of_searches(1)]
    told = [line["candidates"] for line in lines if "candidates" in line]
    assert told
    for rows in told:
        for row in rows.values():
            assert set(row) <= {"logprobs", "stops", "blocks"}
            assert all(logprob < 0 for logprob in row["logprobs"])


def test_candidates_that_cannot_be_are_refused():
    lines = log_of_searches(1, enable_prefix_caching=True)
    index = next(n for n, line in enumerate(lines) if '"blocks":[' in line and "candidates" in line)
    line = json.loads(lines[index])
    row = next(each for each in line["candidates"].values() if "blocks" in each)
    row["blocks"].pop()
    lines[index] = json.dumps(line)
    with pytest.raises(ReplayError, match="candidates"):
        replay(lines)
