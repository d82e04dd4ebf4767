"""Tokens behind drafts, of outputs that are held to a grammar: drawn with the chances that the grammar leaves them."""

from dataclasses import replace

import numpy as np
import torch

from engine.core.config import SchedulerConfig
from engine.core.events import TokensEmitted
from engine.core.scheduler import Scheduler
from engine.core.stats import Totals
from engine.core.types import SamplingParams
from engine.grammars.source import GrammarKind
from engine.runner.model_runner import ModelRunner
from engine.runner.proposers import NgramDrafts
from policies.fcfs import Fcfs
from policies.latest_arrival import LatestArrival
from tests.model import tiny_llama
from tests.runner.test_constrained_outputs import Held
from tests.runner.test_guided_drafts import held  # noqa: F401  a fixture
from tests.runner.test_scheduled_swap import make_request


class Chain(torch.nn.Module):
    """A model whose next token depends on the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        size = tiny_llama.VOCABULARY_SIZE
        self.logits = torch.randn((size, size), generator=torch.Generator().manual_seed(4)) * 1.5

    def forward(self, batch, kv_caches):
        return self.logits[batch.token_ids[batch.sampled_index]]


NUM_ROWS = 64


def serve_chain(tiny: Held, drafts, num_tokens: int) -> tuple[list[list[int]], Totals]:
    """What 64 requests say that are held to letters up to l, and how many drafts were verified."""
    config = SchedulerConfig(
        max_num_seqs=NUM_ROWS,
        max_drafting_seqs=NUM_ROWS,
        max_num_batched_tokens=8 * NUM_ROWS,
        block_size=16,
        num_device_blocks=NUM_ROWS * (num_tokens // 16 + 2),
        max_model_len=num_tokens + 10,
        num_draft_tokens=4 if drafts else 0,
        min_draft_acceptance=0.0,
    )
    runner = ModelRunner(replace(tiny.model, module=Chain()), config, drafts)
    scheduler = Scheduler(config, Fcfs(), LatestArrival())
    letters = tiny.constraint(GrammarKind.REGEX, "[a-l]*", ends_late=True)
    for index in range(NUM_ROWS):
        request = replace(make_request(index), prompt_token_ids=(2, 3), max_output_tokens=num_tokens)
        scheduler.add(replace(request, sampling=SamplingParams(seed=1000 + index, constraint=letters)), 0)
    outputs: list[list[int]] = [[] for _ in range(NUM_ROWS)]
    while (plan := scheduler.plan(0)) is not None:
        for event in scheduler.commit(runner.execute(plan), 0):
            if isinstance(event, TokensEmitted):
                outputs[int(event.key.generation_id[1:])] += event.token_ids
    return outputs, scheduler.stats().totals


def test_tokens_that_a_grammar_allows_are_drawn_with_their_probabilities_behind_drafts(held):  # noqa: F811  the fixture
    outputs, totals = serve_chain(held, NgramDrafts(1), 330)
    assert totals.num_drafted_tokens > 20_000, "few tokens were drawn behind drafts"
    assert 2_000 < totals.num_accepted_tokens < totals.num_drafted_tokens
    size = tiny_llama.VOCABULARY_SIZE
    counts = np.zeros((size, size))
    for output in outputs:
        np.add.at(counts, (output[:-1], output[1:]), 1)
    allowed = np.flatnonzero(counts.sum(0))
    assert set(held.text(allowed.tolist())) <= set("abcdefghijkl")
    counts = counts[np.ix_(allowed, allowed)]
    assert counts.sum() > 20_000
    logits = Chain().logits.double()[allowed][:, allowed]
    expected = logits.softmax(-1).numpy() * counts.sum(1, keepdims=True)
    likely = expected >= 5
    num_free = likely.sum() - len(allowed)
    assert ((counts - expected)[likely] ** 2 / expected[likely]).sum() < num_free + 5 * np.sqrt(2 * num_free)
    one_by_one, _ = serve_chain(held, None, 60)
    assert one_by_one == [output[:60] for output in outputs]
